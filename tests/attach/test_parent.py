"""The parent of the sidecar and the command, with a sidecar that does what a test says."""

from __future__ import annotations

import os
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import pytest

from tests.support.servers.server import eventually

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

def waits(held, announce):
    announce("socket", "address")
    os.read(held, 1)
    return 0

def drains(held, announce):
    announce("socket", "address")
    os.read(held, 1)
    say("it drains")
    sys.stdin.readline()
    return 0

def hangs_again(held, announce):
    if "VARIABLE" not in os.environ:  # the first one
        return dies(held, announce)
    say("it hangs")
    os.read(held, 1)
    return 0

def say(line):
    print(line, file=sys.stderr, flush=True)

sidecars = {one.__name__: one for one in (dies, waits, drains, hangs_again)}
parent = Parent(sidecars[sys.argv[1]], "VARIABLE", say, now_ns)
sys.exit(parent.run(sys.argv[3:], os.environ))
"""


def python(program: str) -> list[str]:
    """The command that runs it, for a minute at most."""
    return [sys.executable, "-c", f"import os, signal, sys; signal.alarm(60); {program}"]


WAITS, ENDS_WITH_7 = python("signal.pause()"), python("sys.exit(7)")


def arguments(sidecar: str, command: Sequence[str], step_s: int = 0, before: str = "") -> list[str]:
    """Of a parent whose clock goes on by `step_s` each time that it is read."""
    return [sys.executable, "-c", f"{before}{_PARENT}", sidecar, str(step_s), *command]


@contextmanager
def parent_of(
    sidecar: str,
    command: Sequence[str],
    step_s: int = 0,
    before: str = "",
    stderr: int | IO[str] = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        arguments(sidecar, command, step_s, before),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
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


def tell(process: subprocess.Popen[str]) -> None:
    """A line for whoever reads the standard input."""
    assert process.stdin is not None
    process.stdin.write("enough\n")
    process.stdin.flush()


def wait_until_up(process: subprocess.Popen[str]) -> None:
    """The command says so."""
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


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
        tell(process)
        assert process.wait(30) == 7


def test_a_parent_without_descriptors_for_a_new_sidecar_waits_for_the_command() -> None:
    """Whatever is wrong with the parent, the engine goes on."""
    with parent_of("dies", WAITS) as process:
        said(process, "the sidecar has ended")
        _, most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, most))
        assert "tried again in 2 s" in said(process, "the sidecar cannot be started")
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_parent_that_can_say_nothing_waits_for_the_command() -> None:
    """The disk of its log is full: neither child is ended by that."""
    command = python("print('up', flush=True); signal.pause()")
    with open("/dev/full", "w") as full, parent_of("dies", command, stderr=full) as process:
        wait_until_up(process)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_command_gets_the_end_of_its_terminal() -> None:
    """The kernel tells the first process of a session alone, which is the parent."""
    hangup = "signal.signal(signal.SIGHUP, lambda *_: os._exit(5))"
    command = python(f"{hangup}; os.write(1, b'up'); signal.pause()")
    pid, terminal = pty.fork()
    if pid == 0:
        words = arguments("waits", command)
        os.execv(words[0], words)
    try:
        shown = b""
        while b"up" not in shown:
            shown += os.read(terminal, 4096)
    finally:
        os.close(terminal)
    status: list[int] = []
    try:
        eventually(lambda: _has_ended(pid, status), "the end of the parent")
    finally:
        if not status:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status[0]) == 5


def _has_ended(pid: int, status: list[int]) -> bool:
    ended, found = os.waitpid(pid, os.WNOHANG)
    status += [found] if ended else []
    return bool(ended)


def test_where_the_end_of_a_child_was_ignored_the_command_still_ends_the_parent() -> None:
    """Whoever started us may have had no use for it; it is inherited."""
    ignores = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    with parent_of("waits", ENDS_WITH_7, before=ignores) as process:
        assert process.wait(30) == 7


def test_the_command_ignores_no_signal_that_we_do_not() -> None:
    """Python ignores two, which a command would never see."""
    command = ["grep", "SigIgn", "/proc/self/status"]
    with parent_of("waits", command) as process:
        assert process.stdout is not None
        ignored = process.stdout.readline()
    assert _ignored(ignored) == _ignored(subprocess.check_output(command, text=True))


def _ignored(line: str) -> int:
    """Bits of the numbers below 32; two above are the C library's own."""
    return int(line.split()[1], 16) & 0x7FFF_FFFF


def test_a_command_that_ends_while_a_new_sidecar_hangs_at_its_start_ends_the_parent() -> None:
    command = python("sys.stdin.readline(); sys.exit(7)")
    with parent_of("hangs_again", command) as process:
        said(process, "it hangs")
        tell(process)
        assert process.wait(30) == 7
