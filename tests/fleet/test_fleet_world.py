"""Gateways and nodes on real sockets, in one process: what one says the other does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from service.fleet.routing.decision_replay import replay_decisions
from service.fleet.wire import messages
from service.fleet.wire.counts import Fault
from service.gateway.errors import EngineUnavailable
from telemetry.facts.fleet.routing_records import RequestRouted
from telemetry.facts.fleet.sequence_records import ClockSampled
from telemetry.facts.reasons import EndReason, Phase
from telemetry.requests.account import NotObserved, Part
from tests.fleet.fleet_world import (
    KEY,
    GatewayWorld,
    NodeWorld,
    cancellation,
    run,
    steps,
    timelines,
    until,
)
from tests.support.servers.scripted_engine import token_of


def test_a_sequence_goes_to_the_node_and_its_tokens_come_back() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r")
            await steps(node, 4)
            await asked.take()
            assert asked.ends == [EndReason.MAX_TOKENS]
            assert asked.tokens() == [token_of(7, index) for index in range(4)]
            assert not node.handlers

    run(case)


def test_the_parts_of_a_request_add_up_at_both_ends_and_the_trace_is_one() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r")
            await steps(node, 4)
            await asked.take()
            asked.end(EndReason.MAX_TOKENS)
            here, there = await timelines(gateway, node, "r")
            for timeline in (here, there):
                assert timeline.account is not None
                assert timeline.account.ledger.residue_ns == 0
            assert here.account is not None
            assert there.account is not None
            parts, remote = here.account.ledger.by_part(), there.account.ledger
            assert parts[Part.NOT_OBSERVED] == 0
            wire_ns = sum(parts[one] for one in (Part.WIRE, Part.WIRE_OUT, Part.WIRE_BACK))
            assert wire_ns > 0
            assert here.sequences[0].remote is not None
            assert sum(one.ns for one in here.sequences[0].remote.parts) == remote.e2e_ns
            gateway_ns = here.e2e_ns - remote.e2e_ns - wire_ns
            own = here.sequences[0]
            assert own.ended_ns is not None
            assert own.sent_ns is not None
            assert gateway_ns == here.e2e_ns - (own.ended_ns - own.sent_ns)
            assert there.accepted.trace_id == here.accepted.trace_id
            assert there.accepted.parent_span_id == "b" * 16
            assert len(here.sequences[0].token_ns) == 4

    run(case)


def test_the_gateway_tells_waiting_from_computing_though_the_news_comes_with_the_token() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r")
            await steps(node, 4)
            await asked.take()
            asked.end(EndReason.MAX_TOKENS)
            for timeline in await timelines(gateway, node, "r"):
                spans = {one.name: one.end_ns - one.start_ns for one in timeline.phases}
                assert spans[Phase.QUEUE] > 0
                assert spans[Phase.PREFILL] > 0

    run(case)


@pytest.mark.parametrize("reason", [EndReason.STOP_STRING, EndReason.DISCONNECT])
def test_the_account_of_a_sequence_that_is_cut_ends_with_the_last_output_that_counted(
    reason: EndReason,
) -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r", max_tokens=50)
            await steps(node, 3)
            await asked.take(ends=0, tokens=3)
            asked.cancel(reason)
            asked.end(reason)
            await node.engine.step()  # a token that nobody wants any more
            await cancellation(node)
            here, there = await timelines(gateway, node, "r")
            assert here.account is not None
            assert here.account.ledger.residue_ns == 0
            assert here.sequences[0].remote is not None
            assert there.account is not None
            assert there.account.ledger.residue_ns == 0
            unseen = here.account.ledger.by_not_observed()
            if reason is EndReason.STOP_STRING:
                assert not unseen
            else:
                assert set(unseen) == {NotObserved.AT_NODE.value}
            assert [one.reason for one in node.engine.cancelled] == [reason]

    run(case)


def test_a_request_that_is_cancelled_before_any_output_is_not_observed_at_the_node() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r")
            await steps(node, 0)
            asked.cancel(EndReason.DISCONNECT)
            asked.end(EndReason.DISCONNECT)
            await cancellation(node)
            here, _ = await timelines(gateway, node, "r")
            assert here.account is not None
            ledger = here.account.ledger
            assert ledger.residue_ns == 0
            assert set(ledger.by_not_observed()) == {NotObserved.AT_NODE.value}

    run(case)


def test_choices_of_a_request_go_to_one_engine_and_requests_are_spread() -> None:
    async def case() -> None:
        async with NodeWorld() as a, NodeWorld() as b, GatewayWorld(a, b) as gateway:
            await gateway.until(n0="ready", n1="ready")
            asked = [gateway.ask(f"r{number}", sequences=3) for number in range(4)]
            await steps(a, 0, 6)
            await steps(b, 0, 6)
            for node in (a, b):
                ids = sorted(name.partition(".")[0] for name in node.handlers)
                assert len(set(ids)) == 2
            await steps(a, 4, 6)
            await steps(b, 4, 6)
            for one in asked:
                await one.take()
                assert one.ends == [EndReason.MAX_TOKENS] * 3
            facts = gateway.lane.drain()
            assert len([one for one in facts if isinstance(one, RequestRouted)]) == 4
            assert not replay_decisions(facts).differing

    run(case)


def test_two_gateways_may_use_one_node_and_the_same_request_ids() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as one, GatewayWorld(node) as other:
            await one.until(n0="ready")
            await other.until(n0="ready")
            asked = [one.ask("same"), other.ask("same")]
            await steps(node, 0, 2)
            assert len(node.handlers) == 2
            await steps(node, 4, 2)
            for each in asked:
                await each.take()
                assert each.ends == [EndReason.MAX_TOKENS]
            assert node.listener.gateways == 2

    run(case)


def test_a_gateway_that_leaves_cancels_its_sequences_and_no_others() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as stays:
            await stays.until(n0="ready")
            kept = stays.ask("kept")
            async with GatewayWorld(node) as leaves:
                await leaves.until(n0="ready")
                leaves.ask("gone")
                await steps(node, 1, 2)
            await until(lambda: len(node.handlers) == 1, "one sequence is left")
            await cancellation(node)
            await steps(node, 3, 0)
            assert [one.reason for one in node.engine.cancelled] == [EndReason.DISCONNECT]
            await kept.take()
            assert kept.ends == [EndReason.MAX_TOKENS]

    run(case)


def test_when_an_engine_dies_each_sequence_ends_once_and_its_successor_serves() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            before = gateway.client.links[0].incarnation
            asked = gateway.ask("r", sequences=2)
            await steps(node, 1, 2)
            await node.restart()
            await asked.take()
            assert asked.ends == [EndReason.ENGINE_DIED] * 2
            await until(
                lambda: gateway.client.links[0].incarnation not in (0, before), "a new incarnation"
            )
            await gateway.until(n0="ready")
            again = gateway.ask("again")
            await steps(node, 4)
            await again.take()
            assert again.ends == [EndReason.MAX_TOKENS]

    run(case)


def test_a_node_that_is_lost_ends_its_sequences_and_the_rest_serve() -> None:
    async def case() -> None:
        async with NodeWorld() as stays:
            lost = NodeWorld()
            await lost.__aenter__()
            async with GatewayWorld(stays, lost) as gateway:
                await gateway.until(n0="ready", n1="ready")
                first = gateway.ask("a")
                (busy,) = (
                    one.name for one in gateway.client.links_view().engines if one.outstanding
                )
                asked = [first, gateway.ask("b")]
                if busy == "n1":  # which of two equal engines is chosen hangs on their key
                    asked.reverse()
                await steps(stays, 1)
                await steps(lost, 1)
                await lost.__aexit__()
                await asked[1].take()
                assert asked[1].ends == [EndReason.ENGINE_DIED]
                await until(lambda: gateway.states()["n1"] == "lost", "n1 is lost")
                await steps(stays, 3)
                await asked[0].take()
                assert asked[0].ends == [EndReason.MAX_TOKENS]
                asked[1].end(EndReason.ENGINE_DIED)
                gateway.telemetry.pump.run_once()
                account = gateway.telemetry.timelines[asked[1].request_id].account
                assert account is not None
                assert account.ledger.residue_ns == 0
                assert gateway.client.sequences_lost == 1

    run(case)


def test_a_draining_node_gets_nothing_new_and_finishes_what_it_has() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r")
            await steps(node, 1)
            node.drain.begin()
            await gateway.until(n0="draining")
            with pytest.raises(EngineUnavailable):
                gateway.ask("more")
            await steps(node, 3)
            await asked.take()
            assert asked.ends == [EndReason.MAX_TOKENS]

    run(case)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (lambda: NodeWorld(key=b"x" * 32), "key"),
        (lambda: NodeWorld(digest="e" * 64), "vocabulary"),
        (lambda: NodeWorld(model="other"), "model"),
    ],
)
def test_a_node_of_another_fleet_is_not_used_and_the_reason_is_said(
    node: Callable[[], NodeWorld], said: str
) -> None:
    async def case() -> None:
        async with node() as there, GatewayWorld(there) as gateway:
            await gateway.until(n0="refused")
            assert said in gateway.client.links[0].why
            assert said in gateway.client.unavailable_error().message
            await until(lambda: there.listener.gateways == 0, "the node has no gateway")

    run(case)


async def _reads_end(node: NodeWorld, data: bytes) -> None:
    reader, writer = await asyncio.open_connection(node.host, node.port)
    writer.write(data)
    async with asyncio.timeout(10):
        while await reader.read(4096):
            pass
    writer.close()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Fault.TOO_LARGE),
        (b"\xff" * 64, Fault.TOO_LARGE),
        ((20).to_bytes(4, "little") + b"\x93" * 20, Fault.GARBAGE),
        ((1024).to_bytes(4, "little") + b"\0" * 1024, Fault.GARBAGE),
    ],
)
def test_a_peer_without_the_key_can_send_little_and_learns_nothing(
    data: bytes, fault: Fault
) -> None:
    async def case() -> None:
        async with NodeWorld() as node:
            await _reads_end(node, data)
            assert node.listener.counts.faults[fault] == 1
            assert node.listener.gateways == 0

    run(case)


def test_a_frame_that_was_changed_on_the_way_ends_the_connection() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            link = gateway.client.links[0]
            peer = link._peer
            assert peer is not None
            assert peer._seal is not None
            peer._seal._number += 1  # as if a frame had been dropped in between
            link.send(messages.Beat(number=1, gateway_sent_ns=0))
            await until(lambda: node.listener.counts.faults[Fault.FORGED] == 1, "the node's no")
            await gateway.until(n0="ready")  # it connects again

    run(case)


def test_a_gateway_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.fleet.wire.peer.BACKLOG_BYTES", 1 << 16)

    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            peer = gateway.client.links[0]._peer
            assert peer is not None
            assert peer._transport is not None
            peer._transport.pause_reading()
            (there,) = node.listener._peers
            while there.is_open:
                there.send(messages.Goodbye(why="x" * 500))
            assert node.listener.counts.faults[Fault.BACKLOG] == 1
            peer._transport.abort()

    run(case)


def test_beats_leave_the_four_stamps_and_reports_say_how_loaded_the_engine_is() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r", sequences=2)
            await steps(node, 0, 2)
            link = gateway.client.links[0]
            await until(
                lambda: link.report is not None and link.report.load.waiting == 2, "a report"
            )
            assert link.report is not None
            assert link.report.received == 1
            assert link.report.load.prompt_tokens == 6
            assert link.report.load.blocks_total == 64
            await steps(node, 4, 2)
            await asked.take()
            await until(
                lambda: link.report is not None and link.report.ended == 1, "a later report"
            )
            await until(lambda: any(isinstance(one, ClockSampled) for one in gateway.lane.drain()),
                        "a sample")  # fmt: skip

    run(case)


def test_an_engine_that_is_taken_out_of_the_membership_is_left() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            gateway.membership.by_name = {}
            await until(lambda: not gateway.client.links, "the link is gone")
            await until(lambda: node.listener.gateways == 0, "the connection is gone")
            assert gateway.membership.key == KEY

    run(case)
