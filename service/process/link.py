"""One end of a local stream socket between two processes of the server; it never blocks.

What the socket does not accept goes to a backlog, in order. Without a backlog the bytes of a
message are in the socket when `send` returns, so what another process is told after that cannot
overtake them.
"""

from __future__ import annotations

import socket
from collections import deque

from telemetry.facts.framing import Unframer, framed

_RECEIVE_BYTES = 1 << 18


class LinkClosed(Exception):
    """The other end has closed the socket, or its process has ended."""


class Link:
    """Sends and receives framed messages; the owner polls the socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unframer = Unframer()
        self._backlog: deque[memoryview] = deque()
        self.backlog_bytes = 0

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    def send(self, payload: bytes) -> None:
        """Send a message; what the socket does not take is kept. Raises LinkClosed."""
        data = framed(payload)
        self._backlog.append(memoryview(data))
        self.backlog_bytes += len(data)
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes of the backlog. Raises LinkClosed."""
        while self._backlog:
            try:
                sent = self._connection.send(self._backlog[0])
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkClosed from error
            self.backlog_bytes -= sent
            rest = self._backlog.popleft()[sent:]
            if rest:
                self._backlog.appendleft(rest)

    def block(self) -> None:
        """Wait in later calls of `send` until everything is written."""
        self._connection.setblocking(True)

    def receive(self) -> list[bytes]:
        """The messages that one read completes; none if nothing has arrived. Raises LinkClosed, and
        ValueError if the stream is out of step."""
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkClosed from error
        if not data:
            raise LinkClosed
        return list(self._unframer.feed(data))

    def close(self) -> None:
        self._connection.close()
