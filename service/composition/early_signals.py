"""Signals that come before a server is ready; part of the composition root.

By default they end the process where it is, and what it has made stays: sockets and folders.
"""

from __future__ import annotations

import signal
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM


class EarlySignals:
    """From now until the event loop has handlers of its own, SIGTERM raises SystemExit; at first it
    waits for `let_in`. SIGUSR2 does nothing: there is no recorder. For the main thread.

    They are handlers of Python's own: what is ignored would stay so in the engine's process.
    """

    def __init__(self) -> None:
        self._is_let_in = self._has_come = False
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGUSR2, _do_nothing)

    def let_in(self) -> None:
        """To be called where SystemExit removes all that was made. Raises SystemExit if SIGTERM has
        come."""
        self._is_let_in = True
        if self._has_come:
            raise SystemExit(EXIT_TERMINATED)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
        if self._is_let_in:
            raise SystemExit(EXIT_TERMINATED)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass
