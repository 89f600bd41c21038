"""A transport whose end the client can read, and whose end comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LEAST_READ_BYTES = 64 * 1024
"""A client that reads so much in the time in which it may read nothing is slow, not stuck."""
_LINGER_S = 2.0


def _discard(data: bytes) -> None:
    """`write` of a closed connection."""


class ClosingTransport:
    """A transport for uvicorn whose `close` lets the client read the last response.

    Closing a socket with unread bytes resets the connection, and the response is lost. So only the
    sending side is closed, and what arrives in the next two seconds is discarded (`lingers`).
    """

    def __init__(self, transport: asyncio.Transport, stuck_write_s: float) -> None:
        self._transport = transport
        self._stuck_write_s = stuck_write_s
        self._abort_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.lingers = False
        # every token of a stream passes here
        self.write: Callable[[bytes], None] = transport.write
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """What is written and was not taken by the kernel: the client reads slowly."""
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        if self.is_closing():
            return
        self.mark_closed()
        self._watch_end()
        if self.lingers and self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def abort(self) -> None:
        self.mark_closed()
        self._transport.abort()

    def mark_closed(self) -> None:
        """Discard what the application still writes."""
        self._is_closing = True
        self.write = _discard

    def _watch_end(self) -> None:
        unsent_bytes = self.unsent_bytes
        patience_s = self._stuck_write_s if unsent_bytes else _LINGER_S
        loop = asyncio.get_running_loop()
        self._abort_timer = loop.call_later(patience_s, self._on_timeout, unsent_bytes)

    def _on_timeout(self, unsent_bytes: int) -> None:
        """`unsent_bytes` were there when the wait began."""
        if unsent_bytes - self.unsent_bytes >= LEAST_READ_BYTES:
            self._watch_end()
        else:
            self._transport.abort()

    def on_lost(self) -> None:
        """The connection is closed."""
        self.mark_closed()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
