"""One HTTP connection: uvicorn's protocol, with an end to whatever a client may draw out.

A head that is too long or does not come, bytes that are not HTTP, more requests sent ahead than
anybody needs, an answer that nobody reads: each is refused with one typed reply, after the replies
that are still owed, and the connection ends. A body that breaks the rules is told to whoever reads
it, so that a request that reached the application is answered there and nowhere else.

uvicorn and httptools are used beyond their documented surface here; the tests hold that together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.config.http_settings import HttpConfig
from service.gateway.errors import ApiError
from service.gateway.http.acceptor import OpenConnections
from service.gateway.http.http_errors import headers_late, headers_too_large, not_http
from service.gateway.http.plain_http import reply
from telemetry.metrics.connections import Refusal

ARRIVED = "phasescope.arrived_ns"
_WHOLE = "phasescope.body_whole"
_BROKEN = "phasescope.body_broken"
_HEADERS_MAX = 128
_AHEAD_MAX = 16  # requests that may wait for the answer to an earlier one
_FREE_CHUNKS, _CHUNK_BYTES = 1024, 64  # beyond the first so many, chunks of so many bytes or more
_LINGER_S = 2.0
_SLACK_S = 5.0  # a stream's own timer is to be first: it knows the reason


def body_is_whole(scope: Scope) -> bool:
    """All of the request's body has come; if not, its connection can serve no other request."""
    return _WHOLE in scope or ARRIVED not in scope


def body_is_broken(scope: Scope) -> bool:
    """The rest of the body will not come: its framing is not HTTP."""
    return _BROKEN in scope


class _Enough(Exception):
    """Stops the parser; what to say is known already."""


def _drop(data: bytes) -> None:
    """The write of a connection that has ended."""


class Closer:
    """uvicorn's view of a transport, whose `close` lets the client read the last answer.

    A socket that is closed with something unread in it resets the connection, and the answer is
    lost. So the sending side is closed first, and what still comes is thrown away for a while.
    """

    def __init__(self, transport: asyncio.Transport, stuck_write_s: float) -> None:
        self._transport = transport
        self._stuck_write_s = stuck_write_s
        self._end: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.lingers = False
        # every token of a stream passes here
        self.write: Callable[[bytes], None] = transport.write
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self.ends()
        is_read = self._transport.get_write_buffer_size() == 0
        patience_s = _LINGER_S if is_read else self._stuck_write_s
        self._end = asyncio.get_running_loop().call_later(patience_s, self._transport.abort)
        if self.lingers and self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def abort(self) -> None:
        self.ends()
        self._transport.abort()

    def ends(self) -> None:
        """What an application still says goes nowhere: it learns of the end a moment later."""
        self._is_closing = True
        self.write = _drop

    def lost(self) -> None:
        """It is closed."""
        self.ends()
        if self._end is not None:
            self._end.cancel()


class GuardedHttp(HttpToolsProtocol):
    """Where a connection is: in a head (or before one), or in the body of `cycle`'s request."""

    stamp_ns: int | None = None

    def __init__(
        self, *args: Any, connections: OpenConnections | None = None, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self._connections = connections or OpenConnections(HttpConfig())
        self._limits = self._connections.limits
        self._in_body = False
        self._head_begun = False
        self._heads = 0
        self._head_bytes = 0
        self._body_bytes = 0
        self._chunks = 0
        self._refused = False  # nothing more is read
        self._refusal: tuple[ApiError, Refusal] | None = None
        self._owed: bytes | None = None  # the last reply, when those before it are sent
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """No request is under way: what comes next begins one."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._closer = Closer(transport, self._connections.stuck_write_s)
        super().connection_made(cast(asyncio.Transport, self._closer))
        self._connections.counts.open += 1
        self._connections.settled(self)
        self._watch_head(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closer.lost()
        self._watch_head(False)
        self._watch_write(False)
        self._connections.at_work(self)
        self._connections.counts.open -= 1
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    @property
    def begins_next(self) -> bool:
        """What is read next is, or may become, a request's head."""
        return self.is_idle and not self._refused

    def displace(self) -> None:
        self._closer.close()

    def eof_received(self) -> None:
        self._closer.ends()  # the transport closes itself, now

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        head_before = self._heads if self._head_begun else None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self.cycle is not None:
                self.cycle.keep_alive = False  # we speak nothing else; what follows is unknown
        except httptools.HttpParserError:
            if not self._refused:
                self._stop(*(self._refusal or (not_http(), Refusal.INVALID)))
            return
        if self._head_begun and head_before == self._heads:
            self._head_bytes += len(data)  # of a header that has not ended, too
            if self._head_bytes > 2 * self._limits.max_header_bytes:
                self._stop(headers_too_large(self._limits), Refusal.HEADERS_TOO_LARGE)
                return
        self._watch_head(self.is_idle and not self._in_body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_begun = True
        self._heads += 1
        self._head_bytes = 0
        cast(Scope, self.scope)[ARRIVED] = self.stamp_ns

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # a trailer is no header: the request is at work already
        self._count_head(len(name) + len(value) + 4)
        if len(self.headers) >= _HEADERS_MAX:
            self._too_large()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _AHEAD_MAX:
            self._connections.counts.refuse(Refusal.PIPELINE)
            self._refused = True
            self.pipeline[0][0].keep_alive = False  # the last that is answered
            self._closer.lingers = True
            raise _Enough
        super().on_headers_complete()
        self._head_begun = False
        self._in_body = True
        self._body_bytes = self._chunks = 0
        self._closer.lingers = True
        self._connections.at_work(self)

    def on_chunk_header(self) -> None:
        """A body in tiny pieces costs thousands of times what its bytes do."""
        self._chunks += 1
        if self._chunks > _FREE_CHUNKS + self._body_bytes // _CHUNK_BYTES:
            raise _Enough

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._closer.lingers = False
        cast(Scope, self.cycle.scope)[_WHOLE] = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._closer.is_closing() or not self.is_idle:
            return
        if self._in_body:
            self._closer.close()
        elif self._owed is not None:
            self._part(self._owed)
        else:
            self._connections.settled(self)
            self._watch_head(self._head_begun)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_write(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_write(False)

    def _count_head(self, count_bytes: int) -> None:
        self._head_bytes += count_bytes
        if self._head_bytes > self._limits.max_header_bytes:
            self._too_large()

    def _too_large(self) -> None:
        self._refusal = (headers_too_large(self._limits), Refusal.HEADERS_TOO_LARGE)
        raise _Enough

    def _stop(self, error: ApiError, reason: Refusal) -> None:
        """Read nothing more; answer, unless an answer is under way or the application owes it."""
        self._refused = True
        self._closer.lingers = True
        self._watch_head(False)
        self._connections.counts.refuse(reason)
        if self._in_body:
            self._break_body()
            return
        last = reply(error, self.server_state.default_headers)
        if self.is_idle:
            self._part(last)
        else:
            self._owed = last

    def _break_body(self) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            self._closer.close()
            return
        cycle.keep_alive = False
        cast(Scope, cycle.scope)[_BROKEN] = True
        cycle.message_event.set()

    def _part(self, last: bytes) -> None:
        self._connections.at_work(self)
        if not self._closer.is_closing():
            self._closer.write(last)
            self._closer.close()

    def _watch_head(self, waits: bool) -> None:
        """Give a head that is awaited its time; that goes on while it comes."""
        if not waits:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None and not self._closer.is_closing():
            self._head_timer = self.loop.call_later(self._limits.header_timeout_s, self._late)

    def _late(self) -> None:
        self._head_timer = None
        if self._closer.is_closing():
            return
        if self._head_begun:
            self._stop(headers_late(self._limits), Refusal.HEADER_TIMEOUT)
        else:
            self._connections.counts.refuse(Refusal.HEADER_TIMEOUT)
            self._connections.at_work(self)
            self._closer.close()

    def _watch_write(self, waits: bool) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if waits:
            patience_s = self._connections.stuck_write_s + _SLACK_S
            self._write_timer = self.loop.call_later(patience_s, self._unread)

    def _unread(self) -> None:
        self._write_timer = None
        self._connections.counts.refuse(Refusal.UNREAD)
        self._closer.abort()
