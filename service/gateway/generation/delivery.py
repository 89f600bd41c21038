"""Sends one request's response: status, headers, events, error.

The headers of a stream are sent when the engine has accepted the request. Until its first token,
comments are sent, so that proxies do not close the idle connection.

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
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.http.asgi import send_error, send_start, send_whole
from telemetry.facts.reasons import Outcome
from telemetry.requests.timings import RequestTimings, server_timing

log = logging.getLogger("phasescope.gateway")

_ERROR_TIMEOUT_S = 1.0
_HEARTBEAT = b": wait\n\n"
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Delivery:
    """Sends the response and records what was sent."""

    def __init__(
        self, send: Send, recorder: RequestRecorder, on_blocked: Callable[[bool], None]
    ) -> None:
        """`on_blocked` is called with True when a write of a stream has to wait for the client,
        and with False when it is finished."""
        self._on_blocked = on_blocked
        self._send = send
        self._recorder = recorder
        self.failed: Callable[[ApiError], bytes | None] = _no_event_of_its_own
        self._typed = False
        self.streaming = False
        self._first_token_sent = False
        self._pending_write: tuple[Generator[Any, Any, None], Any, int, bool] | None = None

    def close(self) -> None:
        """The request has ended: drop its callback, so that there is no reference cycle."""
        self._on_blocked = ignore
        self.failed = _no_event_of_its_own

    async def begin_stream(self, typed: bool, waiting_before: int | None) -> None:
        """Send status and headers; from now on errors are events.

        `waiting_before` is how many sequences wait before this request; None if it does not wait.
        """
        self._typed = typed
        self.streaming = True
        self._recorder.status = 200
        content_type = "text/event-stream; charset=utf-8"
        await send_start(self._send, 200, content_type, _STREAM_HEADERS)
        if typed:
            accepted = {
                "request_id": self._recorder.request_id,
                "queued": waiting_before is not None,
                "waiting_before": waiting_before or 0,
            }
            accepted_event = named_event("accepted", msgspec.json.encode(accepted))
            await self._send_body(accepted_event, is_content=False)

    async def send_opening(self, opening: bytes) -> None:
        """Send what says only that the request was taken, if there is something."""
        if opening:
            await self._send_body(opening, is_content=False)

    async def send_heartbeat(self) -> None:
        """Send a comment, which clients ignore."""
        await self._send_body(_HEARTBEAT, is_content=False)

    async def send_events(self, deltas: list[bytes]) -> None:
        """Send the chunks of one step, in one write."""
        if deltas:
            await self._send_body(self.encode_events(deltas))

    def encode_events(self, deltas: list[bytes]) -> bytes:
        """The bytes of some chunks, with event names if events are typed."""
        if not self._typed:
            return deltas[0] if len(deltas) == 1 else b"".join(deltas)
        parts = [b"event: delta\n" + delta for delta in deltas]
        if not self._first_token_sent:
            self._first_token_sent = True
            parts.insert(0, named_event("first_token", b"{}"))
        return b"".join(parts)

    async def end_stream(self, tail: bytes, finish_reasons: list[str], done: bytes) -> None:
        """Send the tail (usage and metrics, if they were asked for), and what ends the stream."""
        if self._typed:
            tail = b"event: usage\n" + tail if tail else b""
            body = msgspec.json.encode({"finish_reasons": finish_reasons})
            tail += named_event("completed", body)
        await self._send_body(tail + done, last=True)

    async def send_response(self, body: bytes, timings: RequestTimings | None = None) -> None:
        """Send a response in one piece; `timings` go into the `server-timing` header too."""
        self._recorder.status = 200
        headers = {"server-timing": server_timing(timings)} if timings is not None else None
        await send_whole(self._send, 200, body, headers=headers)
        self._recorder.sent(len(body))

    async def send_error(self, error: ApiError) -> None:
        """Send an error: as the response if nothing was sent yet, else as the last event."""
        try:
            async with asyncio.timeout(_ERROR_TIMEOUT_S):
                if self.streaming:
                    await self._send_body(self._error_event(error), last=True, is_content=False)
                elif self._recorder.status == 0:
                    self._recorder.status = error.status
                    await send_error(self._send, error)
        except (TimeoutError, OSError, RuntimeError):
            log.debug(
                "request %s: the error could not be delivered",
                self._recorder.request_id,
                extra=self._recorder.about(),
            )

    def _error_event(self, error: ApiError) -> bytes:
        try:
            own = self.failed(error)
        except Exception:  # the client must learn of the end even so
            log.exception(
                "request %s: no event for its error",
                self._recorder.request_id,
                extra=self._recorder.about(),
            )
            own = None
        if own is not None:
            return own
        if not self._typed:
            return b"data: " + error.body() + b"\n\n"
        cancelled = error.reason.outcome is Outcome.CANCELLED
        return named_event("cancelled" if cancelled else "failed", error.body())

    def write(self, body: bytes, last: bool = False, is_content: bool = True) -> bool:
        """Write a part of the stream without waiting; False if the write is blocked.

        A write is blocked when the client has too much unread. Then `finish_write` must be awaited
        before anything else is written.
        """
        assert self._pending_write is None, "two writes at once"
        message = {"type": "http.response.body", "body": body, "more_body": not last}
        steps = self._send(message).__await__()
        try:
            awaited = next(steps)
        except StopIteration:
            self._recorder.sent(len(body), is_content)
            return True
        self._pending_write = (steps, awaited, len(body), is_content)
        return False

    async def finish_write(self) -> None:
        """Wait for the blocked write, if there is one."""
        if self._pending_write is None:
            return
        (steps, awaited, count_bytes, is_content), self._pending_write = self._pending_write, None
        self._on_blocked(True)
        await _resume(steps, awaited)
        self._on_blocked(False)
        self._recorder.sent(count_bytes, is_content)

    async def _send_body(self, body: bytes, last: bool = False, is_content: bool = True) -> None:
        await self.finish_write()
        if not self.write(body, last, is_content):
            await self.finish_write()


def _no_event_of_its_own(error: ApiError) -> None:
    """An error is written as its body."""


@coroutine
def _resume(steps: Generator[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Await the rest of a coroutine that was started by hand and has yielded `awaited`."""
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


def named_event(name: str, data: bytes) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
