"""Names of adapters while the engine loads, runs, and is replaced by another one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from service.config.settings import GatewayConfig
from service.engine.inbox import LoadAdapter, Submit, UnloadAdapter
from service.engine.plan import Emission
from service.engine.prompt_output import Pooled
from service.gateway.engine_client.adapters import AdapterView
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.errors import ApiError, error_of_end
from service.gateway.ingest.schemas import Operation
from service.process.frames import Frame
from telemetry.facts.adapter_records import (
    AdapterAdded,
    AdapterRead,
    AdapterRefusal,
    AdapterRefused,
)
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import EndReason
from tests.gateway.test_handled_requests import World
from tests.support.servers.scripted_engine import ScriptedEngine

PATIENCE_S = 60.0
"""Only turns a hang into a failure."""
RETRY = (503, "not_ready")
UNKNOWN = (404, "model_not_found")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))


def added(number: int, name: str, ticket: int = 0) -> AdapterAdded:
    return AdapterAdded(
        at_ns=0, step_id=0, number=number, name=name, source=f"/{name}", ticket=ticket
    )


def refusal(world: World, name: str) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as caught:
        world.state.adapter_of(name)
    if caught.value.status == 503:
        assert caught.value.headers["retry-after"]
    return caught.value.status, caught.value.code


async def tell(world: World, fact: AdapterAdded) -> None:
    """The engine says it, and the gateway has read it."""
    await world.engine.say(Frame([], [fact], 0))
    while world.client.adapters.number_of(fact.name) != fact.number:
        await asyncio.sleep(0)


def test_a_name_is_to_be_tried_again_until_an_engine_says_which_there_are() -> None:
    """As the base model is: a 404 would be final to a client."""

    async def scenario() -> None:
        world = World()
        world.client.adapters.await_start([("writer", "/writer")])
        assert refusal(world, "writer") == refusal(world, "nobody") == RETRY
        assert world.state.adapter_of("m") == 0
        assert world.state.adapter_names == ["writer"]

        await world.begin()
        await tell(world, added(3, "writer"))
        assert world.state.adapter_of("writer") == 3
        assert refusal(world, "nobody") == UNKNOWN

        await world.engine.die()
        assert refusal(world, "writer") == refusal(world, "nobody") == RETRY
        assert world.state.adapter_names == ["writer"]

        world.engine = ScriptedEngine(MonotonicClock())
        await world.begin()
        await tell(world, added(1, "writer"))
        assert world.state.adapter_of("writer") == 1
        assert world.state.adapter_names == ["writer"]
        await world.engine.die()
        await world.end()

    run(scenario())


async def loaded(view: AdapterView, sent: list[LoadAdapter | UnloadAdapter], name: str) -> None:
    loading = asyncio.ensure_future(view.load(name, f"/{name}", False, PATIENCE_S))
    await asyncio.sleep(0)
    view.take(added(7, name, sent[-1].ticket))
    view.take(AdapterRead(at_ns=0, step_id=0, number=7, bytes=10, rank=4, read_ns=1))
    await loading


def test_what_was_loaded_at_run_time_is_awaited_until_the_next_engine_has_it() -> None:
    """It is ready before it has read them again. A name that nobody will load again is unknown."""

    async def scenario() -> None:
        sent: list[LoadAdapter | UnloadAdapter] = []
        view = AdapterView(sent.append)
        await loaded(view, sent, "guest")
        view.take(added(8, "stray"))
        view.engine_ended()
        assert [one.name for one in view.listed()] == ["guest", "stray"]

        view.engine_started()
        assert sent[-1] is sent[-2]
        assert view.is_awaited("guest")
        assert [one.name for one in view.listed()] == ["guest"]

        view.take(added(1, "guest"))
        assert not view.is_awaited("guest")
        assert view.number_of("guest") == 1

    run(scenario())


def test_what_the_next_engine_does_not_take_is_awaited_no_longer() -> None:
    async def scenario() -> None:
        sent: list[LoadAdapter | UnloadAdapter] = []
        view = AdapterView(sent.append)
        await loaded(view, sent, "guest")
        view.engine_ended()
        view.engine_started()
        view.take(
            AdapterRefused(
                at_ns=0,
                step_id=0,
                name="guest",
                why=AdapterRefusal.TOO_MANY,
                ticket=sent[-1].ticket,
            )
        )
        assert not view.is_awaited("guest")
        assert view.listed() == []

    run(scenario())


def test_what_fails_in_a_load_is_for_the_operator_and_not_for_clients() -> None:
    """The message of the engine names folders of the server."""
    detail = "adapter 'writer' could not be loaded: /srv/adapters/writer has no tensors"
    error = error_of_end(EndReason.ADAPTER_FAILED, lambda: 1, detail)

    assert error is not None
    assert (error.status, error.code) == (500, "adapter_failed")
    assert "could not be loaded" in error.message
    assert "/srv" not in error.message


class Pools(EngineClient):
    """Answers each sequence with a vector, at once."""

    def submit(self, command: Submit, queue: OutputQueue, about: RequestContext) -> int:
        vector = Pooled(bytes(8))
        queue.put(Emission(command.seq_id, None, EndReason.MAX_TOKENS, prompt=vector))
        return 0


@pytest.mark.parametrize(("asked", "named"), [({"model": "writer"}, "writer"), ({}, "m")])
def test_embeddings_name_the_adapter_that_made_them(asked: dict[str, str], named: str) -> None:
    bodies: list[Any] = []

    async def scenario() -> None:
        client = Pools(None, lambda stage: None)
        world = World(GatewayConfig(pooling="mean"), client)
        await world.begin()
        await tell(world, added(1, "writer"))
        await world.ask(Operation.EMBEDDINGS, {"input": [20, 21], **asked})
        bodies.extend(json.loads(one["body"]) for one in world.sent if one.get("body"))
        await world.engine.die()
        await world.end()

    run(scenario())
    (body,) = bodies
    assert (body["model"], len(body["data"])) == (named, 1)
