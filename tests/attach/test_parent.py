"""The parent of the sidecar and the command, with a sidecar that does what a test says."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_PARENT = """
import os, sys
from service.composition.attached.parent import Parent

now = [0]

def now_ns():
    now[0] += int(sys.argv[2]) * 1_000_000_000
    return now[0]

def dies(held, announce):
    announce("socket", "address")
    return 3

def drains(held, announce):
    announce("socket", "address")
    os.read(held, 1)
    say("it drains")
    sys.stdin.readline()
    return 0

def say(line):
    print(line, file=sys.stderr, flush=True)

parent = Parent({"dies": dies, "drains": drains}[sys.argv[1]], "VARIABLE", say, now_ns)
sys.exit(parent.run(sys.argv[3:], os.environ))
"""
WAITS, ENDS_WITH_7 = "import signal; signal.pause()", "raise SystemExit(7)"


@contextmanager
def parent_of(sidecar: str, command: str, step_s: int = 0) -> Iterator[subprocess.Popen[str]]:
    """One whose clock goes on by `step_s` each time that it is read."""
    arguments = [sidecar, str(step_s), sys.executable, "-c", command]
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT, *arguments],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], words: str) -> str:
    """The next line with these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it never said {words}")


@pytest.mark.parametrize(("lives_s", "again"), [(59, "in 2 s"), (60, "in 1 s")])
def test_a_sidecar_that_was_healthy_for_a_minute_is_soon_started_again(
    lives_s: int, again: str
) -> None:
    """The pause grows only while it fails again and again."""
    with parent_of("dies", WAITS, lives_s) as process:
        assert "in 1 s" in said(process, "the sidecar has ended")
        assert again in said(process, "the sidecar has ended")
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM  # of the command


@pytest.mark.parametrize("late", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_sidecar_drains_does_not_change_the_code_of_the_command(
    late: signal.Signals,
) -> None:
    with parent_of("drains", ENDS_WITH_7) as process:
        said(process, "it drains")
        process.send_signal(late)
        assert process.stdin is not None
        process.stdin.write("enough\n")
        process.stdin.flush()
        assert process.wait(30) == 7
