"""The monitor at a real pseudo-terminal, as a user runs it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from server import Server, free_port, spawn

from dashboards.monitor.keys import Keyboard

LIMIT_S = 30.0
_STYLES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def terminal(columns: int = 100, lines: int = 30) -> Iterator[tuple[int, int]]:
    """The user's end and the program's end."""
    user, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    try:
        yield user, program
    finally:
        os.close(user)
        os.close(program)


def read_until(user: int, expected: str) -> None:
    """Read what the program draws until the text appears; the limit turns a hang into a failure."""
    seen, text = b"", ""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        ready, _, _ = select.select([user], [], [], 0.1)
        if ready:
            seen += os.read(user, 65_536)
        text = _STYLES.sub(b"", seen).decode(errors="replace")
        if expected in text:
            return
    raise AssertionError(f"{expected!r} is not in {text[-2000:]}")


@contextmanager
def top(program: int, url: str) -> Iterator[subprocess.Popen[bytes]]:
    process = spawn(
        "top", url, "--interval", "0.1", env={"TERM": "xterm", "NO_COLOR": "1"},
        stdin=program, stdout=program, stderr=program,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_top_keeps_the_last_picture_when_the_server_goes_and_leaves_on_q() -> None:
    """The terminal gets its modes back."""
    with terminal() as (user, program):
        before = termios.tcgetattr(program)
        with Server("--model", "dummy:tiny") as server, top(program, server.url) as process:
            read_until(user, "ready  dummy:tiny")
            server.__exit__()
            read_until(user, "unreachable for")
            read_until(user, "dummy:tiny on torch-cpu")
            os.write(user, b"q")

            assert process.wait(LIMIT_S) == 0
            assert termios.tcgetattr(program) == before


def test_top_without_a_server_says_so_and_fails() -> None:
    """There is no last picture to keep."""
    with terminal() as (user, program), top(program, f"http://127.0.0.1:{free_port()}") as process:
        read_until(user, "cannot be read")

        assert process.wait(LIMIT_S) == 1


@pytest.mark.parametrize(("typed", "quits"), [(b"q", True), (b"x", False), (b"xq", True)])
def test_only_q_quits(typed: bytes, quits: bool) -> None:
    """Other keys draw the next frame early, no more."""
    with terminal() as (user, program), Keyboard(program) as keyboard:
        os.write(user, typed)

        assert keyboard.quit_within(int(LIMIT_S * 1e9)) is quits


def test_no_key_means_the_next_frame() -> None:
    """And without a terminal there are no keys at all."""
    with terminal() as (_, program), Keyboard(program) as keyboard:
        assert keyboard.quit_within(1_000) is False
    with Keyboard(-1) as keyboard:
        assert keyboard.quit_within(1_000) is False


def test_a_terminal_that_goes_away_ends_the_monitor() -> None:
    """It would be drawn for nobody, for ever."""
    user, program = pty.openpty()
    try:
        with Keyboard(program) as keyboard:
            os.close(user)
            assert keyboard.quit_within(int(LIMIT_S * 1e9)) is True
    finally:
        os.close(program)
