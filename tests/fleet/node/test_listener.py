"""Who has the key comes in, however many connections there are without it; and a node does not go
on without what listens."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest

from service.composition.node.listener import GatewaysLost, end_of
from service.engine.plan import Emission
from service.fleet.wire.counts import Fault
from service.fleet.wire.messages import LoadReport
from service.gateway.engine_client.supervisor import EngineStartFailed
from telemetry.facts.fleet.routing_records import RequestRouted, RouteChoiceEnded
from telemetry.facts.reasons import EndReason
from tests.fleet.fleet_world import GatewayWorld, NodeWorld, run, until

STRANGERS = 300


async def stranger(node: NodeWorld) -> asyncio.StreamWriter:
    """A connection that has been challenged and says nothing."""
    reader, writer = await asyncio.open_connection(node.host, node.port)
    await reader.read(4)
    return writer


def test_strangers_that_prove_nothing_keep_no_gateway_out() -> None:
    async def case() -> None:
        async with NodeWorld() as node:
            strangers = [await stranger(node) for _ in range(STRANGERS)]
            async with GatewayWorld(node) as gateway:
                await gateway.until(n0="ready")
                assert not gateway.client.connects[False]
                more = [await stranger(node) for _ in range(STRANGERS)]
                assert node.listener.gateways == 1
            assert node.listener.counts.faults[Fault.TOO_MANY] > STRANGERS
            for writer in (*strangers, *more):
                writer.close()

    run(case)


def test_a_gateway_more_than_there_may_be_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.composition.node.listener.MOST_GATEWAYS", 2)

    async def case() -> None:
        async with NodeWorld() as node, AsyncExitStack() as stack:
            for _ in range(2):
                one = await stack.enter_async_context(GatewayWorld(node))
                await one.until(n0="ready")
            async with GatewayWorld(node) as late:
                await late.until(n0="refused")
                assert "as many gateways" in late.client.links[0].why
                assert node.listener.gateways == 2
                await one.__aexit__()
                await until(lambda: late.states()["n0"] == "ready", "there is room now")

    run(case)


def test_a_report_has_requests_that_the_engine_reads_after_its_step() -> None:
    """Gateways take what a report counts as received off what they have sent since."""

    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            link = gateway.client.links[0]
            gateway.ask("r")
            await until(lambda: link.report is not None and link.report.received == 1, "a report")
            assert link.report is not None
            assert (link.report.load.waiting, link.report.load.prompt_tokens) == (1, 3)
            assert link.report.own_sequences == 1

    run(case)


def test_a_report_says_which_sequences_are_of_the_gateway_that_reads_it() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as one, GatewayWorld(node) as other:
            await one.until(n0="ready")
            await other.until(n0="ready")
            one.ask("three", sequences=3)
            other.ask("one")

            def own() -> list[int | None]:
                reports = [world.client.links[0].report for world in (one, other)]
                return [None if report is None else report.own_sequences for report in reports]

            await until(lambda: own() == [3, 1], "each has its own")
            facts = one.lane.drain()
            assert [fact.sequences for fact in facts if isinstance(fact, RequestRouted)] == [3]

    run(case)


def test_a_report_counts_the_choices_that_have_ended_of_requests_that_go_on() -> None:
    """As the gateway does, which knows so which of their ends the report contains."""

    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            link = gateway.client.links[0]
            gateway.ask("three", sequences=3)
            await until(
                lambda: [one.sequences for one in node.listener._peers] == [3], "they are there"
            )
            (peer,) = node.listener._peers
            peer.emitted(Emission(next(iter(peer._by_ours)), None, EndReason.STOP_TOKEN))
            peer.report(node.listener.loads.load())
            await until(lambda: link.report is not None and link.report.choices_ended == 1, "it")
            told = [one for one in gateway.lane.drain() if isinstance(one, RouteChoiceEnded)]
            assert [one.request_id for one in told] == ["three"]
            assert link.report is not None
            assert (link.report.own_sequences, link.report.ended) == (2, 0)

    run(case)


def test_a_report_counts_no_sequence_whose_end_was_there_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its load does not have that sequence either."""

    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r", max_tokens=1)
            await until(
                lambda: [one.sequences for one in node.listener._peers] == [1], "it is there"
            )
            (peer,) = node.listener._peers
            sent: list[object] = []
            send = peer.send

            def noted(message: Any) -> None:
                sent.append(message)
                send(message)

            monkeypatch.setattr(peer, "send", noted)
            peer.emitted(Emission(next(iter(peer._by_ours)), None, EndReason.STOP_TOKEN))
            peer.report(node.listener.loads.load())
            said = [one for one in sent if isinstance(one, LoadReport)]
            assert [one.own_sequences for one in said] == [0]
            await asked.take()

    run(case)


def test_a_node_ends_when_it_does_not_listen_to_gateways_any_more() -> None:
    """Although its engine runs. Nobody can connect to a socket of datagrams."""

    async def runs() -> None:
        await asyncio.Event().wait()

    async def case() -> None:
        async with NodeWorld() as node:
            engine = asyncio.create_task(runs())
            with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
                listening = asyncio.create_task(node.listener.run(datagrams))
                with pytest.raises(GatewaysLost, match="ValueError"):
                    await end_of(engine, listening)
            assert not engine.done()
            engine.cancel()

    run(case)


def test_a_node_ends_with_the_supervisor_of_its_engine() -> None:
    async def fails() -> None:
        raise EngineStartFailed("no model")

    async def case() -> None:
        async with NodeWorld() as node:
            listening = node._task
            with pytest.raises(EngineStartFailed, match="no model"):
                await end_of(asyncio.create_task(fails()), listening)
            assert not listening.done()

    run(case)
