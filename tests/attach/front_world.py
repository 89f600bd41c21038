"""A server with the middleware in front, driven by scripted ASGI messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from service.attach.inside.front_end.front import Front, Live
from service.attach.inside.middleware import App, AttachMiddleware, Message, Receive, Scope, Send
from service.attach.wire import Submitted
from telemetry.facts.clock import Clock, ManualClock
from telemetry.facts.records import Fact, RequestAccepted, RequestEnded

CHAT = "/v1/chat/completions"


class TickingClock(ManualClock):
    """Each reading is ten nanoseconds later than the one before."""

    def now_ns(self) -> int:
        self.advance(10)
        return super().now_ns()


class ListedSink:
    """Keeps what a sidecar would get; `fails_on` are kinds of facts on which it raises."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.submitted: list[Submitted] = []
        self.turned_off: list[tuple[str, str, bool]] = []
        self.fails_on: tuple[type, ...] = ()

    def append(self, fact: Fact) -> None:
        if isinstance(fact, self.fails_on):
            raise RuntimeError("a fact of ours")
        self.facts.append(fact)

    def submit(self, submitted: Submitted) -> None:
        self.submitted.append(submitted)

    def turn_off(self, hook: str, reason: str, *, is_all: bool = False) -> None:
        self.turned_off.append((hook, reason, is_all))


class World:
    """One server; `exchange` sends it a request and gives what the server's socket saw."""

    def __init__(self, app: App, clock: Clock | None = None) -> None:
        self.clock = clock or TickingClock()
        self.sink = ListedSink()
        self.live = Live(self.clock)
        self.is_engine_dead = False
        self.front = Front(self.sink, self.clock, self.live, lambda: self.is_engine_dead)
        self.app = AttachMiddleware(app, attach=lambda _: self.front)

    def exchange(
        self,
        headers: dict[str, str] | None = None,
        incoming: list[Message] | None = None,
        on_send: Callable[[Message], None] = lambda _: None,
        **more: Any,
    ) -> list[Message]:
        scope = scope_of(headers or {}, **more)
        return asyncio.run(self.serve(scope, incoming, on_send))

    async def serve(
        self,
        scope: Scope,
        incoming: list[Message] | None = None,
        on_send: Callable[[Message], None] = lambda _: None,
    ) -> list[Message]:
        waiting = [{"type": "http.request", "body": b"{}"}] if incoming is None else incoming[:]
        seen: list[Message] = []

        async def receive() -> Message:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            on_send(message)
            seen.append(message)

        await self.app(scope, receive, send)
        return seen

    @property
    def accepted(self) -> list[RequestAccepted]:
        return [fact for fact in self.sink.facts if isinstance(fact, RequestAccepted)]

    @property
    def ended(self) -> list[RequestEnded]:
        return [fact for fact in self.sink.facts if isinstance(fact, RequestEnded)]

    @property
    def end(self) -> RequestEnded:
        (found,) = self.ended
        return found


def scope_of(headers: dict[str, str], **more: Any) -> Scope:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": CHAT, "headers": pairs, **more}


def answering(status: int, *bodies: bytes) -> App:
    """A server that answers so, the last body being the last part of the answer."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": []})
        for number, body in enumerate(bodies, start=1):
            has_more = number < len(bodies)
            await send({"type": "http.response.body", "body": body, "more_body": has_more})

    return app
