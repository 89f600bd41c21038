"""Waiting for the next frame or for a key, whichever comes first.

A terminal hands over lines, so the keyboard is read in cbreak mode and put back on the
way out, whatever ends the monitor. Without a terminal there are no keys, only the wait.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any

from telemetry.clock import sleep_ns

try:
    import termios
    import tty
except ImportError:  # no such terminals on this system
    _HAS_TERMIOS = False
else:
    _HAS_TERMIOS = True

_QUIT = b"qQ\x03"


class Keyboard:
    """A context in which `quit_within` sees single keys of the terminal at `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._saved: list[Any] | None = None

    def __enter__(self) -> Keyboard:
        if _HAS_TERMIOS and _is_terminal(self._fd):
            self._saved = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._saved is not None:
            with suppress(termios.error):  # a terminal that is gone has no modes
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)
            self._saved = None

    def quit_within(self, wait_ns: int) -> bool:
        """Wait that long, or until a key is pressed; whether the key was q."""
        if self._saved is None:
            sleep_ns(wait_ns)
            return False
        ready, _, _ = select.select([self._fd], [], [], wait_ns / 1e9)
        if not ready:
            return False
        pressed = _read(self._fd)
        # A terminal that has gone away is readable and empty for ever.
        return not pressed or any(key in _QUIT for key in pressed)


def stdin_fd() -> int:
    """The standard input's descriptor; -1 where there is none."""
    try:
        return sys.stdin.fileno()
    except (OSError, ValueError, AttributeError):
        return -1


def _is_terminal(fd: int) -> bool:
    return fd >= 0 and os.isatty(fd)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 64)
    except OSError:
        return b""
