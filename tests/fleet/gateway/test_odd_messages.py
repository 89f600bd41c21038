"""What a node says that cannot be: each request of a gateway still ends, exactly once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from service.composition.node.gateway_peer import GatewayPeer
from service.engine.plan import Emission
from service.fleet.wire import messages
from service.fleet.wire.counts import Fault
from service.gateway.fleet.prefill import PrefillSplit
from telemetry.facts.fleet.sequence_records import RemoteAdmitted
from telemetry.facts.reasons import EndReason
from tests.fleet.fleet_world import Asked, GatewayWorld, NodeWorld, accounts, run, steps, until


async def connected(node: NodeWorld, gateway: GatewayWorld, name: str = "n0") -> GatewayPeer:
    """The node's end of the one connection, once it is ready."""
    await gateway.until(**{name: "ready"})
    (peer,) = node.listener._peers
    return peer


async def begun(node: NodeWorld, gateway: GatewayWorld, request_id: str = "r") -> Asked:
    """A request that a report of the node contains; one token of it has been read."""
    asked = gateway.ask(request_id)
    await steps(node, 1)
    link = gateway.client.links[0]
    await until(lambda: link.report is not None and link.report.received == 1, "a report")
    await asked.take(ends=0, tokens=1)
    return asked


def test_a_report_that_goes_back_leaves_no_request_without_an_end() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            peer = await connected(node, gateway)
            asked = await begun(node, gateway)
            last = gateway.client.links[0].report
            assert last is not None
            peer.send(replace(last, number=last.number + 1000, received=0))
            await steps(node, 3)
            await asked.take()
            assert asked.ends == [EndReason.MAX_TOKENS]
            assert not gateway.client.counts.faults

    run(case)


def test_a_second_end_of_a_sequence_in_one_message_changes_nothing() -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            peer = await connected(node, gateway)
            asked, other = gateway.ask("r"), gateway.ask("other")
            await steps(node, 1, 2)
            (seq_id,) = asked.seq_ids
            ends = [Emission(seq_id, None, why) for why in (EndReason.EOS, EndReason.DEADLINE)]
            peer.send(messages.Emitted(emissions=ends))
            await asked.take()
            await steps(node, 3, 2)
            await other.take()
            assert asked.ends == [EndReason.EOS]
            assert other.ends == [EndReason.MAX_TOKENS]
            assert not gateway.client.counts.faults

    run(case)


def test_what_a_node_says_of_another_nodes_sequence_is_not_heard() -> None:
    async def case() -> None:
        async with NodeWorld() as a, NodeWorld() as b, GatewayWorld(a, b) as gateway:
            peers = {a: await connected(a, gateway), b: await connected(b, gateway, "n1")}
            asked = gateway.ask("r")
            (seq_id,) = asked.seq_ids
            (view,) = [one for one in gateway.client.links_view().engines if one.outstanding]
            node, liar = (a, b) if view.name == "n0" else (b, a)
            await steps(node, 0)
            peers[liar].send(
                messages.Emitted(
                    emissions=[Emission(seq_id, None, EndReason.EOS)],
                    queued=[messages.Queued(seq_id, 7, False)],
                    admitted=[messages.Admitted(seq_id, 3, 0, 0)],
                )
            )
            await _heard(gateway, peers[liar], liar is b)
            assert gateway.client.waiting_before(seq_id) == 0
            assert not [one for one in gateway.lane.drain() if isinstance(one, RemoteAdmitted)]
            await steps(node, 4)
            await asked.take()
            assert asked.ends == [EndReason.MAX_TOKENS]

    run(case)


async def _heard(gateway: GatewayWorld, peer: GatewayPeer, is_second: bool) -> None:
    """The gateway has read what the node wrote."""
    link = gateway.client.links[is_second]
    peer.send(messages.KvRates(bytes_per_ns=0.125, digest_byte_ns=None))
    await until(lambda: link.kv_rates and link.kv_rates.bytes_per_ns == 0.125, "it is heard")


def test_an_account_counts_only_from_the_node_that_had_the_sequence() -> None:
    async def case() -> None:
        async with NodeWorld() as a, NodeWorld() as b, GatewayWorld(a, b) as gateway:
            peers = {a: await connected(a, gateway), b: await connected(b, gateway, "n1")}
            asked = gateway.ask("r")
            (view,) = [one for one in gateway.client.links_view().engines if one.outstanding]
            node, liar = (a, b) if view.name == "n0" else (b, a)
            await steps(node, 4)
            await asked.take()
            peers[liar].send(messages.Accounted(seq_id=asked.seq_ids[0], emissions=4, account=None))
            await _heard(gateway, peers[liar], liar is b)
            (found,) = await accounts(gateway, node)
            assert found.account is not None

    run(case)


class Fails(PrefillSplit):
    """Cannot take reports."""

    def reported(self, name: str) -> None:
        raise ValueError("a mistake in this program")


def test_what_this_end_cannot_handle_is_its_own_fault_and_requests_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            asked = gateway.ask("r")
            await steps(node, 1)
            gateway.client.split = Fails("auto")
            await asked.take()
            assert asked.ends == [EndReason.ENGINE_DIED]
            faults = gateway.client.counts.faults
            assert set(faults) == {Fault.INTERNAL}

    with caplog.at_level(logging.ERROR, "phasescope.fleet"):
        run(case)
    assert any(one.exc_info and "cannot be handled" in one.message for one in caplog.records)


def test_ends_are_delivered_though_the_routers_books_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("a mistake in this program")

    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            await gateway.until(n0="ready")
            monkeypatch.setattr(gateway.client._routing, "over", fails)
            asked = gateway.ask("r")
            await steps(node, 4)
            await asked.take()
            assert asked.ends == [EndReason.MAX_TOKENS]

    run(case)
