"""The harness' end of the hook that tells into which state a transfer came."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST_S = 40.0


@dataclass(frozen=True, slots=True)
class Held:
    """An engine's loop that waits in a state."""

    pid: int
    side: str
    state: str
    connection: socket.socket

    def go(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(b"g")


class StateSocket:
    """`with StateSocket(path) as states:`; nobody is held but while `watching`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._came: queue.Queue[Held] = queue.Queue()
        self._is_watched = False

    def __enter__(self) -> StateSocket:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    @contextlib.contextmanager
    def watching(self) -> Iterator[Iterator[Held]]:
        """States as they come, until none came for `LONGEST_S`; whoever takes one lets it go."""
        self._is_watched = True
        try:
            yield self._next()
        finally:
            self._is_watched = False
            self._let_go()

    def pass_on(self, seconds: float) -> None:
        """Let everybody go who comes, for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._came.get(timeout=left).go()

    def _next(self) -> Iterator[Held]:
        while True:
            try:
                yield self._came.get(timeout=LONGEST_S)
            except queue.Empty:
                return

    def _let_go(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._came.get_nowait().go()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile() as lines:
            for line in lines:
                pid, side, state = line.split()
                held = Held(int(pid), side, state, connection)
                if self._is_watched:
                    self._came.put(held)
                else:
                    held.go()
