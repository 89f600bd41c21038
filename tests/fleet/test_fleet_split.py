"""Which engine computes a prompt and which one goes on with it, as a gateway says and a node does:
on real sockets, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from service.fleet.membership.members import Role
from service.process.frames import KvOffered
from telemetry.facts.fleet.kv_transfer_records import KvSplitChosen, Way
from telemetry.facts.reasons import EndReason
from tests.fleet.fleet_world import TRACE_ID, GatewayWorld, NodeWorld, until

Case = Callable[[], Awaitable[None]]
SENDS, TAKES = KvOffered(4321, "layout", 320), KvOffered(None, "layout", 320)


def run(case: Case) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(case())


async def took(*nodes: NodeWorld, sequences: int = 1) -> None:
    """The engines have so many sequences."""

    async def read() -> int:
        for node in nodes:
            await node.engine.read()
        return sum(len(node.engine.live) for node in nodes)

    async with asyncio.timeout(10):
        while await read() < sequences:
            await asyncio.sleep(0.002)


def splits(node: NodeWorld) -> list[KvSplitChosen]:
    return [fact for fact in node.lane.drain() if isinstance(fact, KvSplitChosen)]


@pytest.mark.parametrize("by", ["its node", "the list of engines"])
def test_a_prompt_is_computed_by_the_prefill_engine_and_goes_on_at_the_other(by: str) -> None:
    async def case() -> None:
        there = NodeWorld(role="prefill" if by == "its node" else "any", kv=SENDS)
        here = NodeWorld(kv=TAKES)
        async with there, here, GatewayWorld(there, here, split="always") as gateway:
            if by != "its node":
                members = gateway.membership.by_name
                members["n0"] = type(members["n0"])(
                    name="n0", host=there.host, port=there.port, role=Role.PREFILL,
                    kv_address=("10.0.0.9", 77),
                )  # fmt: skip
            await gateway.until(n0="ready", n1="ready")
            for number in range(3):
                gateway.ask(f"r{number}")
            await took(here, sequences=3)

            assert not there.engine.live
            expected = (there.host, 4321) if by == "its node" else ("10.0.0.9", 77)
            said = list(here.engine.elsewhere.values())
            assert [(one.host, one.port) for one in said] == [expected] * 3
            assert {one.about.trace_id for one in said} == {TRACE_ID}
            assert [one.about.request_id for one in said] == ["r0", "r1", "r2"]
            chosen = splits(here)
            assert [fact.way for fact in chosen] == [Way.REMOTE] * 3
            assert all(fact.local_ns > 0 < fact.remote_ns for fact in chosen)

    run(case)


@pytest.mark.parametrize(
    ("kv", "split", "sequences"),
    [
        (KvOffered(4321, "another layout", 320), "always", 1),
        (KvOffered(None, "layout", 320), "always", 1),
        (KvOffered(None, "", 0, "several devices"), "always", 1),
        (SENDS, "never", 1),
        (SENDS, "always", 2),
    ],
    ids=["another layout", "no port", "no exchange", "never", "two sequences"],
)
def test_a_prompt_stays_where_it_is_decoded(kv: KvOffered, split: str, sequences: int) -> None:
    async def case() -> None:
        there, here = NodeWorld(role="prefill", kv=kv), NodeWorld(kv=TAKES)
        async with there, here, GatewayWorld(there, here, split=split) as gateway:
            await gateway.until(n0="ready", n1="ready")
            await until(lambda: gateway.client.links[1].kv is not None, "what n1 offers")
            gateway.ask("r", sequences=sequences)
            await took(there, here, sequences=sequences)

            assert not here.engine.elsewhere
            assert splits(here) == []

    run(case)


def test_the_cheaper_way_is_taken_and_both_are_recorded() -> None:
    """Three tokens are not worth a transfer."""

    async def case() -> None:
        there, here = NodeWorld(role="prefill", kv=SENDS), NodeWorld(kv=TAKES)
        async with there, here, GatewayWorld(there, here) as gateway:
            await gateway.until(n0="ready", n1="ready")
            gateway.ask("r")
            await took(here)

            (fact,) = splits(here)
            assert fact.way is Way.LOCAL
            assert fact.local_ns < fact.remote_ns
            assert not here.engine.elsewhere

    run(case)


def test_without_another_engine_a_prefill_engine_answers_whole() -> None:
    async def case() -> None:
        async with (
            NodeWorld(role="prefill", kv=SENDS) as there,
            GatewayWorld(there, split="always") as gateway,
        ):
            await gateway.until(n0="ready")
            asked = gateway.ask("r", max_tokens=1)
            await took(there)
            await there.engine.step()
            await asked.take()

            assert asked.ends == [EndReason.MAX_TOKENS]
            assert not there.engine.elsewhere

    run(case)
