"""One HTTP connection: uvicorn's protocol with limits on what a client can do.

A head that is too large or too slow, bytes that are not HTTP, too many pipelined requests, and a
response that the client does not read end the connection. Where that is possible the client gets
one typed error, after the responses to its earlier requests. A body with broken framing is
reported to the application that reads it, which then answers the request.

This module uses internals of uvicorn and httptools; tests/e2e/test_e2e_attacks.py covers them.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.config.http_settings import HttpConfig
from service.gateway.errors import ApiError
from service.gateway.http.acceptor import OpenConnections
from service.gateway.http.closing_transport import LEAST_READ_BYTES, ClosingTransport
from service.gateway.http.http_errors import header_timeout, headers_too_large, not_http
from service.gateway.http.plain_http import reply
from telemetry.metrics.connections import Refusal

ARRIVED = "phasescope.arrived_ns"
_WHOLE = "phasescope.body_whole"
_BROKEN = "phasescope.body_broken"
_HEADERS_MAX = 128
_AHEAD_MAX = 16  # pipelined requests that wait for an earlier response
_FREE_CHUNKS, _CHUNK_BYTES = 1024, 64  # after 1024 chunks, 64 bytes or more a chunk
_WRITE_SLACK_S = 5.0  # so that a stream's own timer is first: it records the reason


def body_is_whole(scope: Scope) -> bool:
    """The whole body has arrived; if not, the connection cannot be used for another request."""
    return _WHOLE in scope or ARRIVED not in scope


def body_is_broken(scope: Scope) -> bool:
    """The body's framing is not HTTP; the rest of it will not be read."""
    return _BROKEN in scope


class _StopParsing(Exception):
    """Stops the parser; the error has been chosen already."""


class GuardedHttp(HttpToolsProtocol):
    """Tracks whether the connection is before or in a head, or in the body of `cycle`'s request."""

    stamp_ns: int | None = None

    def __init__(
        self, *args: Any, connections: OpenConnections | None = None, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self._connections = connections or OpenConnections(HttpConfig())
        self._limits = self._connections.limits
        self._served: RequestResponseCycle | None = None  # the others wait for it in `pipeline`
        self._in_body = False
        self._head_begun = False
        self._head_bytes = 0  # of its lines that are complete
        self._raw_bytes = 0  # of the head, or of the body since the parser last passed something on
        self._body_bytes = 0
        self._chunks = 0
        self._refused = False  # nothing more is parsed
        self._refusal: tuple[ApiError, Refusal] | None = None
        self._pending_reply: bytes | None = None  # the last reply, sent after the running responses
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """No request is being served."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._closing = ClosingTransport(transport, self._connections.stuck_write_s)
        super().connection_made(cast(asyncio.Transport, self._closing))
        self._connections.counts.open += 1
        self._connections.mark_idle(self)
        self._watch_head(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing.on_lost()
        self._watch_head(False)
        self._watch_write(False)
        self._connections.mark_busy(self)
        self._connections.counts.open -= 1
        self._unset_keepalive_if_required()
        if self._served is not None:  # uvicorn tells only the newest request
            self._served.disconnected = not self._served.response_complete
            self._served.message_event.set()
            self._served = None
        super().connection_lost(exc)

    @property
    def expects_head(self) -> bool:
        """The next bytes belong to a request's head, which may come behind a request that is being
        served."""
        return not (self._in_body or self._refused)

    def displace(self) -> None:
        """Its place is wanted now: what its client has not read of the last answer is given up, and
        under TLS the client's farewell is not waited for."""
        self._closing.abort()

    def eof_received(self) -> None:
        """The client sends no more: it has left. What it has not read yet is given up in time."""
        self._closing.lingers = False
        self._closing.close()

    def data_received(self, data: bytes) -> None:
        if self._refused or self._closing.is_closing():
            return  # what comes after the last answer is only taken, so that this can be read
        self._unset_keepalive_if_required()
        self._raw_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self.cycle is not None:
                self.cycle.keep_alive = False  # no other protocol is supported
        except httptools.HttpParserError:
            if not self._refused:
                self._refuse(*(self._refusal or (not_http(), Refusal.INVALID)))
            return
        if self._raw_bytes > 2 * self._limits.max_header_bytes:  # the parser keeps an unended line
            if self._head_begun:
                self._refuse(headers_too_large(self._limits), Refusal.HEADERS_TOO_LARGE)
                return
            if self._in_body:
                self._refuse(not_http(), Refusal.INVALID)
                return
        self._watch_head(self.is_idle and not self._in_body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_begun = True
        self._head_bytes = self._raw_bytes = 0
        cast(Scope, self.scope)[ARRIVED] = self.stamp_ns

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            self._raw_bytes = 0
            return  # a trailer: the request is being served already
        self._count_head(len(name) + len(value) + 4)
        if len(self.headers) >= _HEADERS_MAX:
            self._too_large()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _AHEAD_MAX:
            self._connections.counts.refuse(Refusal.PIPELINE)
            self._refused = True
            self.pipeline[0][0].keep_alive = False  # no response after this one
            self._closing.lingers = True
            raise _StopParsing
        is_served = self.is_idle
        super().on_headers_complete()
        if is_served:
            self._served = self.cycle
        else:
            self._read_on()
        self._head_begun = False
        self._in_body = True
        self._raw_bytes = self._body_bytes = self._chunks = 0
        self._closing.lingers = True
        self._connections.mark_busy(self)

    def on_chunk_header(self) -> None:
        """Refuse a body in tiny chunks: parsing them costs far more than its bytes do."""
        self._raw_bytes = 0
        self._chunks += 1
        if self._chunks > _FREE_CHUNKS + self._body_bytes // _CHUNK_BYTES:
            raise _StopParsing

    def on_body(self, body: bytes) -> None:
        self._raw_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)
        if self.pipeline:
            self._read_on()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._closing.lingers = False
        cast(Scope, self.cycle.scope)[_WHOLE] = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._served = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._closing.is_closing() or not self.is_idle:
            return
        if self._in_body:
            self._closing.close()
        elif self._pending_reply is not None:
            self._reply_and_close(self._pending_reply)
        else:
            self._connections.mark_idle(self)
            self._watch_head(self._head_begun)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_write(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_write(False)

    def _read_on(self) -> None:
        """Read while little waits for the running response: the end of a connection that is not
        read is not seen, and the request would run for nobody."""
        if sum(len(waiting.body) for waiting, _ in self.pipeline) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()
        else:
            self.flow.pause_reading()

    def _count_head(self, count_bytes: int) -> None:
        self._head_bytes += count_bytes
        if self._head_bytes > self._limits.max_header_bytes:
            self._too_large()

    def _too_large(self) -> None:
        self._refusal = (headers_too_large(self._limits), Refusal.HEADERS_TOO_LARGE)
        raise _StopParsing

    def _refuse(self, error: ApiError, reason: Refusal) -> None:
        """Stop parsing, and reply with `error`: after running responses, or not at all if the
        application reads the body and answers."""
        self._refused = True
        self._closing.lingers = True
        self._watch_head(False)
        self._connections.counts.refuse(reason)
        if self._in_body:
            self._break_body()
            return
        last = reply(error, self.server_state.default_headers)
        if self.is_idle:
            self._reply_and_close(last)
        else:
            self._pending_reply = last

    def _break_body(self) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            self._closing.close()
            return
        cycle.keep_alive = False
        cast(Scope, cycle.scope)[_BROKEN] = True
        cycle.message_event.set()

    def _reply_and_close(self, last: bytes) -> None:
        self._connections.mark_busy(self)
        if not self._closing.is_closing():
            self._closing.write(last)
            self._closing.close()

    def _watch_head(self, waits: bool) -> None:
        """Start or stop the timeout of a head; it is not restarted while the head arrives."""
        if not waits:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None and not self._closing.is_closing():
            self._head_timer = self.loop.call_later(
                self._limits.header_timeout_s, self._head_timeout
            )

    def _head_timeout(self) -> None:
        self._head_timer = None
        if self._closing.is_closing():
            return
        if self._head_begun:
            self._refuse(header_timeout(self._limits), Refusal.HEADER_TIMEOUT)
        else:
            self._connections.counts.refuse(Refusal.HEADER_TIMEOUT)
            self._connections.mark_busy(self)
            self._closing.close()

    def _watch_write(self, waits: bool) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if waits:
            stuck_s = self._connections.stuck_write_s
            patience_s = stuck_s + min(stuck_s, _WRITE_SLACK_S)
            self._write_timer = self.loop.call_later(
                patience_s, self._on_write_timeout, self._closing.unsent_bytes
            )

    def _on_write_timeout(self, unsent_bytes: int) -> None:
        """`unsent_bytes` were there when the wait began."""
        self._write_timer = None
        if unsent_bytes - self._closing.unsent_bytes >= LEAST_READ_BYTES:
            self._watch_write(True)  # of a large answer, by a steady client
            return
        self._connections.counts.refuse(Refusal.UNREAD)
        self._closing.abort()
