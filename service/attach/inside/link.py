"""The socket to the sidecar, for the sending thread: it never waits longer than it is told."""

from __future__ import annotations

import contextlib
import select
import socket
from pathlib import Path


class Link:
    """At most one connection. Every method returns what happened and raises nothing."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket: socket.socket | None = None

    @property
    def is_up(self) -> bool:
        return self._socket is not None

    def connect(self) -> bool:
        """Whether the sidecar took a new connection."""
        self.close()
        try:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError:
            return False
        try:
            found.setblocking(False)
            found.connect(self._path)  # at once, or not at all: the sidecar's queue is full
        except OSError:
            found.close()
            return False
        self._socket = found
        return True

    def send(self, data: memoryview, wait_ms: int) -> int:
        """The number of bytes that the kernel took within `wait_ms`. The link is down after an
        error."""
        if self._socket is None:
            return 0
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0 if not self._wait(wait_ms) else self._send_now(data)
        except OSError:
            self.close()
            return 0

    def close(self) -> None:
        """The connection ends. In a process that forked: its copy is closed, the parent's is not
        touched."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _send_now(self, data: memoryview) -> int:
        assert self._socket is not None
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            return 0

    def _wait(self, wait_ms: int) -> bool:
        """Whether there is room, or an error to be read."""
        assert self._socket is not None
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            return bool(poll.poll(wait_ms))
        except OSError:
            self.close()
            return False
