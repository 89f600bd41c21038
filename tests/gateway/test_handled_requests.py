"""One request in the test's own event loop, of an engine that is moved by hand: its deadline, and
its one end however the engine ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from starlette.types import Message

from service.composition.clients.state import clients_state
from service.config.settings import GatewayConfig
from service.engine.inbox import Submit
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.generation.handler import GenerationHandler
from service.gateway.ingest.schemas import Operation
from service.gateway.processes.unwatched import only_timings
from service.text.dummy_tokenizer import dummy_tokenizer
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact, RequestAccepted, RequestEnded
from telemetry.metrics.ingest_counts import IngestCounts
from tests.support.servers.scripted_engine import CONFIG, ScriptedEngine

TURNS = 12
PATIENCE_S = 60.0
"""Only turns a hang into a failure."""


class World:
    """A server's parts without its sockets; to be made on an event loop."""

    def __init__(
        self, config: GatewayConfig | None = None, client: EngineClient | None = None
    ) -> None:
        clock = MonotonicClock()
        self.lane = Lane()
        self.client = client or EngineClient(None, lambda stage: None)
        self.engine = ScriptedEngine(clock)
        self.sent: list[Message] = []
        self.state = clients_state(
            config or GatewayConfig(),
            CONFIG.model,
            dummy_tokenizer("tiny"),
            clock,
            IngestCounts(),
            lane=self.lane,
            engine=self.client,
            created_unix_s=0,
            views=only_timings(lambda ended: None),
            retry_after_s=lambda: 1,
            start_report=lambda: None,
            live_request_ids=set[str](),
        )

    async def begin(self) -> None:
        await self.engine.attach(self.client)

    async def end(self) -> None:
        await self.state.ingest.close()

    async def serve(self, **fields: Any) -> None:
        """One request for a text, from its first byte to its recorded end."""
        await self.ask(Operation.TEXT, {"prompt": [20, 21], "max_tokens": 1, **fields})

    async def ask(self, operation: Operation, fields: dict[str, Any]) -> None:
        """A request of any route."""
        body = json.dumps(fields).encode()
        unread = asyncio.Queue[Message]()
        unread.put_nowait({"type": "http.request", "body": body, "more_body": False})
        scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": "/v1/completions", "headers": [],
            "state": {"request_id": "r"},
        }  # fmt: skip

        async def send(message: Message) -> None:
            self.sent.append(message)

        handler = GenerationHandler(self.state, operation, scope, unread.get, send)
        await handler.run()


def run(scenario: Coroutine[Any, Any, list[Fact]]) -> list[Fact]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(scenario, PATIENCE_S))


@pytest.mark.parametrize("turn", range(TURNS))
def test_a_request_is_a_503_and_has_one_end_in_whatever_turn_its_engine_dies(turn: int) -> None:
    """Of the event loop: in one of them the socket to the engine has closed, uvloop's writes raise,
    and the client has not been told yet."""
    sent: list[Message] = []

    async def scenario() -> list[Fact]:
        world = World()
        await world.begin()
        tasks: list[asyncio.Future[None]] = []
        for now in range(TURNS):
            if now == TURNS // 2:
                tasks.append(asyncio.ensure_future(world.serve()))
            if now == turn:
                tasks.append(asyncio.ensure_future(world.engine.die()))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        await world.end()
        sent.extend(world.sent)
        return world.lane.drain()

    ends = [fact for fact in run(scenario()) if isinstance(fact, RequestEnded)]
    assert [end.status for end in ends] == [503]
    assert sent[0]["status"] == 503
    assert ends[0].reason in (EndReason.NOT_READY, EndReason.ENGINE_DIED)


class Broken(EngineClient):
    """Takes no command."""

    def submit(self, command: Submit, queue: OutputQueue, about: RequestContext) -> int:
        raise ValueError("no submit")

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        raise ValueError("no cancel")


def test_a_request_has_its_end_even_where_its_sequences_cannot_be_cancelled() -> None:
    async def scenario() -> list[Fact]:
        world = World(client=Broken(None, lambda stage: None))
        await world.begin()
        with pytest.raises(ValueError, match="no cancel"):
            await world.serve()
        await world.engine.die()
        await world.end()
        return world.lane.drain()

    (end,) = [fact for fact in run(scenario()) if isinstance(fact, RequestEnded)]
    assert (end.reason, end.status) == (EndReason.INTERNAL, 500)


@pytest.mark.parametrize(
    ("allowed_s", "wished_s", "kept_s"),
    [(None, None, None), (30.0, None, 30.0), (None, 60.0, 60.0), (30.0, 60.0, 30.0),
     (60.0, 30.0, 30.0)],
)  # fmt: skip
def test_a_request_has_the_shorter_of_what_its_client_and_the_operator_allow(
    allowed_s: float | None, wished_s: float | None, kept_s: float | None
) -> None:
    """A client that asks for more than `--request-timeout` does not get it."""
    submits: list[Submit] = []

    async def scenario() -> list[Fact]:
        world = World(GatewayConfig(request_timeout_s=allowed_s))
        await world.begin()
        serving = asyncio.ensure_future(world.serve(timeout=wished_s))
        while not world.engine.live:
            await asyncio.sleep(0)
            await world.engine.read()
        submits.extend(world.engine.live.values())
        await world.engine.step()
        await serving
        await world.engine.die()
        await world.end()
        return world.lane.drain()

    (accepted,) = [fact for fact in run(scenario()) if isinstance(fact, RequestAccepted)]
    (submit,) = submits
    deadline_ns = None if kept_s is None else accepted.at_ns + int(kept_s * 1e9)
    assert submit.deadline_ns == deadline_ns
