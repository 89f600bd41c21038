"""Ids of calls whose results come back: a request that is not served uses none up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.errors import ApiError
from service.gateway.generation.ingest_task import IngestTask
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.tool_results import CallOrigin
from service.gateway.ingest.schemas import Operation
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.recorder import Lane
from telemetry.facts.tool_records import ToolResultsReturned
from tests.gateway.test_handled_requests import World

PATIENCE_S = 60.0
"""Only turns a hang into a failure."""
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TALK = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "21", "tool_call_id": "c1"},
]


async def read(world: World, **fields: Any) -> list[ToolResultsReturned]:
    """What is recorded of the results that a request brings. Raises ApiError."""
    lane = Lane()
    recorder = RequestRecorder(lane, MonotonicClock(), "r")
    outputs = OutputQueue(16, lambda full: None)
    body = json.dumps({"messages": TALK, **fields}).encode()
    await IngestTask(world.state, Operation.CHAT, outputs).read(body, recorder)
    return [fact for fact in lane.drain() if isinstance(fact, ToolResultsReturned)]


def test_a_request_that_is_refused_can_be_sent_again_with_the_same_results() -> None:
    """Whether it asks for too much, or there is no engine yet."""

    async def scenario() -> list[ToolResultsReturned]:
        world = World()
        origin = CallOrigin("before", "0" * 32, "0" * 16, MonotonicClock().now_ns())
        world.state.calls.remember(["c1"], origin)
        with pytest.raises(ApiError) as early:
            await read(world)
        await world.begin()
        with pytest.raises(ApiError) as large:
            await read(world, max_tokens=1000)
        returned = await read(world)
        assert (early.value.status, large.value.status) == (503, 400)
        assert len(world.state.calls) == 0
        await world.engine.die()
        await world.end()
        return returned

    (found,) = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert [one.request_id for one in found.calls] == ["before"]
    assert found.unknown == 0
