"""A pure ASGI middleware that sees the generation requests of a server that others wrote.

It writes when a request arrived, when bytes of its answer were sent, and how it ended. What passes
through is not changed, with one exception: a request without `x-request-id` gets one, so that the
engine's own name of it has the id under which phasescope shows it, and the answer has it too.

vLLM's plugin adds it. Where plugins are not allowed, `--middleware` with the path of the class
does; a request is observed once even if both are there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from service.attach.inside.front_end.front import CURRENT, Front
from service.attach.inside.front_end.request import FrontRequest
from service.attach.inside.guard import Guard

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Attach = Callable[[Any], Front | None]

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
}
"""The observed routes, with their operation names in the GenAI conventions."""
_ID = b"x-request-id"
_OBSERVED = "phasescope.observed"


class AttachMiddleware:
    """`attach` gives the front end of an application, or None if it is not observed; it is asked
    once, at the first message to the application, which is the start of its lifespan."""

    def __init__(self, app: App, attach: Attach | None = None) -> None:
        self._app = app
        self._attach = attach
        self._front: Front | None = None
        self._guard: Guard | None = None
        self._is_asked = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._begin(scope, receive, send)
        if exchange is None:
            await self._app(scope, receive, send)
        else:
            await exchange.run(self._app, scope)

    def _begin(self, scope: Scope, receive: Receive, send: Send) -> Exchange | None:
        """Raises nothing. None: it is not observed."""
        if not self._is_asked:
            self._is_asked = True
            self._ask(scope)
        front, guard = self._front, self._guard
        if front is None or guard is None or not guard.is_on:
            return None
        try:
            if scope["type"] != "http" or scope["method"] != "POST" or _OBSERVED in scope:
                return None
            route = scope["path"].removeprefix(scope.get("root_path", ""))
            if route not in OPERATIONS:
                return None
            headers: dict[bytes, bytes] = {}
            for name, value in scope["headers"]:
                headers.setdefault(name, value)
            request = front.accept(headers, route, OPERATIONS[route])
            scope[_OBSERVED] = True
            if request.has_own_id:
                scope["headers"] = [*scope["headers"], (_ID, request.request_id.encode())]
            return Exchange(front, guard, request, receive, send)
        except Exception as error:
            _failed(front, guard, error)
            return None

    def _ask(self, scope: Scope) -> None:
        with contextlib.suppress(Exception):
            attach = self._attach or _attach_vllm
            self._front = front = attach(scope.get("app"))
            if front is not None:
                self._guard = Guard("middleware", front.turn_off, is_vital=True)


class Exchange:
    """One request on its way through."""

    __slots__ = ("_front", "_guard", "_receive", "_request", "_send")

    def __init__(
        self, front: Front, guard: Guard, request: FrontRequest, receive: Receive, send: Send
    ) -> None:
        self._front, self._guard, self._request = front, guard, request
        self._receive, self._send = receive, send

    async def run(self, app: App, scope: Scope) -> None:
        token = CURRENT.set(self._request)
        try:
            await app(scope, self.receive, self.send)
        except BaseException as error:
            self._request.raised = True
            self._request.is_cancelled = isinstance(error, asyncio.CancelledError)
            raise
        finally:
            CURRENT.reset(token)
            self._end()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._disconnected()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = self._start(message)
        try:
            await self._send(message)
        except OSError:
            self._disconnected()
            raise
        if message["type"] == "http.response.body":
            self._sent(message)

    def _start(self, message: Message) -> Message:
        """The message that starts the response, with the request's id if the engine does not send
        it."""
        try:
            self._request.started(message["status"])
            headers = list(message.get("headers", ()))
            if any(name.lower() == _ID for name, _ in headers):
                return message
            return {**message, "headers": [*headers, (_ID, self._request.request_id.encode())]}
        except Exception as error:
            _failed(self._front, self._guard, error)
            return message

    def _sent(self, message: Message) -> None:
        try:
            has_more = message.get("more_body", False)
            self._request.sent(message.get("body", b""), has_more, self._front.clock.now_ns())
        except Exception as error:
            _failed(self._front, self._guard, error)
            return
        if self._request.answered_ns is not None:
            self._end()

    def _disconnected(self) -> None:
        try:
            self._request.disconnected(self._front.clock.now_ns())
        except Exception as error:
            _failed(self._front, self._guard, error)

    def _end(self) -> None:
        try:
            self._front.end(self._request)
        except Exception as error:
            _failed(self._front, self._guard, error)


def _failed(front: Front, guard: Guard, error: Exception) -> None:
    """Once the guard is off, requests pass unseen."""
    guard.failed(error)
    if not guard.is_on:
        with contextlib.suppress(Exception):
            front.abandon()


def _attach_vllm(app: Any) -> Front | None:
    from service.attach.inside.front_end.vllm_front import attach

    return attach(app)
