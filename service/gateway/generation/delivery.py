"""The way out of one request: status, events, the last word.

The headers of a stream go out when the engine has taken the request, and comments follow until
its first token does: so that nobody between takes a queued stream for a dead one.

With typed events (opt in) each server-sent event has a name: `accepted, first_token, delta,
usage, completed, cancelled, failed`. Without, a stream is exactly OpenAI's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from types import coroutine
from typing import Any

import msgspec
from starlette.types import Send

from service.gateway.engine_client.output_queue import ignore
from service.gateway.errors import ApiError
from service.gateway.generation.request_recorder import Witness
from service.gateway.generation.responses import DONE_EVENT
from service.gateway.http.asgi import send_error, send_start, send_whole
from telemetry.facts.reasons import Outcome
from telemetry.requests.timings import RequestTimings, server_timing

log = logging.getLogger("phasescope.gateway")

_LAST_WORD_S = 1.0
_HEARTBEAT = b": wait\n\n"
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Delivery:
    """Sends, and tells the witness what was sent."""

    def __init__(self, send: Send, witness: Witness, on_write: Callable[[bool], None]) -> None:
        """`on_write` is told when a write of a stream begins and when it is done."""
        self._on_write = on_write
        self._send = send
        self._witness = witness
        self._typed = False
        self.streaming = False
        self._first_token_told = False
        self._unfinished: tuple[Generator[Any, Any, None], Any, int, bool] | None = None

    def close(self) -> None:
        """The request has ended: drop its callback, so that there is no reference cycle."""
        self._on_write = ignore

    async def begin_stream(self, typed: bool, waiting_before: int | None) -> None:
        """Status and headers; from now on errors are events. `waiting_before` sequences wait
        before this request, if it waits at all."""
        self._typed = typed
        self.streaming = True
        self._witness.status = 200
        content_type = "text/event-stream; charset=utf-8"
        await send_start(self._send, 200, content_type, _STREAM_HEADERS)
        if typed:
            accepted = {
                "request_id": self._witness.request_id,
                "queued": waiting_before is not None,
                "waiting_before": waiting_before or 0,
            }
            event = named("accepted", msgspec.json.encode(accepted))
            await self._body(event, is_content=False)

    async def heartbeat(self) -> None:
        """A comment, which clients skip: proxies see that the connection is in use."""
        await self._body(_HEARTBEAT, is_content=False)

    async def events(self, deltas: list[bytes]) -> None:
        """Chunks of one step, in one write."""
        if deltas:
            await self._body(self.framed(deltas))

    def framed(self, deltas: list[bytes]) -> bytes:
        """Chunks as they go over the wire."""
        if not self._typed:
            return deltas[0] if len(deltas) == 1 else b"".join(deltas)
        parts = [b"event: delta\n" + delta for delta in deltas]
        if not self._first_token_told:
            self._first_token_told = True
            parts.insert(0, named("first_token", b"{}"))
        return b"".join(parts)

    async def end_stream(self, tail: bytes, finish_reasons: list[str]) -> None:
        """Usage and metrics if they were asked for, and the end."""
        if self._typed:
            tail = b"event: usage\n" + tail if tail else b""
            body = msgspec.json.encode({"finish_reasons": finish_reasons})
            tail += named("completed", body)
        await self._body(tail + DONE_EVENT, last=True)

    async def whole(self, body: bytes, timings: RequestTimings | None = None) -> None:
        """The answer in one piece; `timings` go into a header too."""
        self._witness.status = 200
        headers = {"server-timing": server_timing(timings)} if timings is not None else None
        await send_whole(self._send, 200, body, headers=headers)
        self._witness.sent(len(body))

    async def last_word(self, error: ApiError) -> None:
        """Tell the client: by status if nothing was sent yet, else as the stream's last event."""
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                if self.streaming:
                    await self._body(self._error_event(error), last=True, is_content=False)
                elif self._witness.status == 0:
                    self._witness.status = error.status
                    await send_error(self._send, error)
        except (TimeoutError, OSError, RuntimeError):
            log.debug("request %s: the error could not be delivered", self._witness.request_id)

    def _error_event(self, error: ApiError) -> bytes:
        if not self._typed:
            return b"data: " + error.body() + b"\n\n"
        cancelled = error.reason.outcome is Outcome.CANCELLED
        return named("cancelled" if cancelled else "failed", error.body())

    def write(self, body: bytes, last: bool = False, is_content: bool = True) -> bool:
        """Write a part of the stream without waiting; whether that was possible.

        The server waits only when the client has left too much unread. Then the write is not
        finished, and `finish_write` is to be awaited before anything else is written.
        """
        assert self._unfinished is None, "two writes at once"
        message = {"type": "http.response.body", "body": body, "more_body": not last}
        steps = self._send(message).__await__()
        try:
            awaited = next(steps)
        except StopIteration:
            self._witness.sent(len(body), is_content)
            return True
        self._unfinished = (steps, awaited, len(body), is_content)
        return False

    async def finish_write(self) -> None:
        """Wait for the write that could not be finished at once, if there is one."""
        if self._unfinished is None:
            return
        (steps, awaited, count_bytes, is_content), self._unfinished = self._unfinished, None
        self._on_write(True)
        await _go_on(steps, awaited)
        self._on_write(False)
        self._witness.sent(count_bytes, is_content)

    async def _body(self, body: bytes, last: bool = False, is_content: bool = True) -> None:
        await self.finish_write()
        if not self.write(body, last, is_content):
            await self.finish_write()


@coroutine
def _go_on(steps: Generator[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Await the rest of a coroutine whose first awaited object is known already."""
    while True:
        try:
            answer = yield awaited
        except BaseException as error:
            try:
                awaited = steps.throw(error)
            except StopIteration:
                return
            continue
        try:
            awaited = steps.send(answer)
        except StopIteration:
            return


def named(name: str, data: bytes) -> bytes:
    """One server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
