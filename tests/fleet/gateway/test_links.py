"""What a gateway knows and says of its engines while connections come and go."""

from __future__ import annotations

import asyncio
import logging

import pytest

from service.fleet.membership.members import Member
from service.fleet.wire import messages
from service.fleet.wire.handshake import NONCE_BYTES
from service.gateway.fleet.client import FleetClient
from service.gateway.fleet.link import EngineLink
from service.process.frames import KvOffered
from telemetry.clocks.fleet_clocks import FleetClocks
from telemetry.facts.fleet.sequence_records import ClockSampled
from telemetry.facts.framing import framed
from tests.fleet.fleet_world import DIGEST, GatewayWorld, NodeWorld, run, until

FORGED = "no\n2026-01-01 ERROR all is lost \x1b[31m\u202e" + "x" * 400
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS


def test_an_engine_has_the_role_that_its_node_says_if_the_membership_says_none() -> None:
    async def case() -> None:
        offer = KvOffered(4321, "layout", 320)
        async with (
            NodeWorld(role="prefill", kv=offer) as node,
            NodeWorld() as other,
            GatewayWorld(node, other) as gateway,
        ):
            await gateway.until(n0="ready", n1="ready")
            await until(lambda: gateway.client.links[0].kv is not None, "the offer")
            assert gateway.client.roles == {"n0": "prefill", "n1": "any"}

    run(case)


def test_a_node_that_refused_and_is_gone_is_lost() -> None:
    async def case() -> None:
        there = NodeWorld(key=b"x" * 32)
        await there.__aenter__()
        async with GatewayWorld(there) as gateway:
            await gateway.until(n0="refused")
            await there.__aexit__()
            await gateway.until(n0="lost")
            assert "cannot connect" in gateway.client.links[0].why

    run(case)


async def _refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(framed(messages.packed(messages.Refused(fault="wrong_key", why=FORGED))))
    await reader.read()
    writer.close()


def test_what_a_peer_without_proof_says_is_one_short_printable_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case() -> None:
        server = await asyncio.start_server(_refuses, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        world = GatewayWorld()
        world.membership.by_name["n0"] = Member(name="n0", host=host, port=port)
        async with world as gateway:
            await gateway.until(n0="refused")
            said = gateway.client.links[0].why
        server.close()
        assert said.isprintable()
        assert said.startswith("it says: no 2026-01-01 ERROR all is lost [31m")
        assert len(said) < 256

    with caplog.at_level(logging.ERROR, "phasescope.fleet"):
        run(case)
    assert all(one.message.isprintable() for one in caplog.records)


def test_a_link_that_is_ended_before_the_proof_ends_its_connection() -> None:
    """And does not leave that to the time that a proof may take."""

    async def case() -> None:
        has_proof, is_closed = asyncio.Event(), asyncio.Event()

        async def challenges(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonce = bytes(NONCE_BYTES)
            challenge = messages.Challenge(protocol=messages.PROTOCOL, nonce=nonce)
            writer.write(framed(messages.packed(challenge)))
            await reader.read(1)
            has_proof.set()
            await reader.read()
            writer.close()
            is_closed.set()

        server = await asyncio.start_server(challenges, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        client = GatewayWorld().client
        link = asyncio.ensure_future(
            EngineLink(Member(name="n0", host=host, port=port), client).run()
        )
        await until(has_proof.is_set, "the proof has come")
        link.cancel()
        await asyncio.wait({link})
        await until(is_closed.is_set, "the connection is closed")
        server.close()
        assert not client.counts.faults
        assert not client.connects[True]

    run(case)


def test_two_loading_phases_of_one_name_whose_clocks_lie_hours_apart_are_no_step() -> None:
    """A machine that was rebooted has another clock; an engine that loads has no incarnation."""

    async def case() -> None:
        gateway, clocks = GatewayWorld(), FleetClocks()
        link = EngineLink(Member(name="n0", host="127.0.0.1", port=1), gateway.client)

        def answered(at_ns: int, node_ns: int) -> None:
            answer = messages.BeatAnswer(
                number=1,
                gateway_sent_ns=at_ns - SECOND_NS,
                node_received_ns=node_ns,
                node_sent_ns=node_ns,
            )
            gateway.client.answered(link, answer, at_ns)

        for at_s, ahead_ns in ((2, 7 * HOUR_NS), (4, 7 * HOUR_NS), (6, 0), (8, 0)):
            answered(at_s * SECOND_NS, at_s * SECOND_NS + ahead_ns)
        link.engine = messages.EngineIs(incarnation=5, started=None, ready=True)
        answered(10 * SECOND_NS, 10 * SECOND_NS)
        sampled = [fact for fact in gateway.lane.drain() if isinstance(fact, ClockSampled)]
        for fact in sampled:
            clocks.sampled(fact)
        assert clocks.steps_found == 0
        assert [fact.incarnation for fact in sampled] == [5]

    run(case)


def test_an_engine_whose_host_cannot_be_looked_up_says_so() -> None:
    async def case() -> None:
        world = GatewayWorld()
        world.membership.by_name["n0"] = Member(name="n0", host="gpu..lan", port=9100)
        async with world as gateway:
            await until(lambda: gateway.client.connects[False] > 1, "it is tried again")
            (shown,) = gateway.client.links_view().engines
            assert shown.why == "cannot connect to gpu..lan:9100: that is no name of a host"

    run(case)


class Fails(FleetClient):
    """Has a defect."""

    def connected(self, worked: bool) -> None:
        raise RuntimeError("nobody foresaw this")


def test_an_engine_whose_link_has_ended_by_a_defect_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case() -> None:
        world = GatewayWorld()
        world.client = Fails(world.membership, world.lane, world.clock, "m", DIGEST)
        world.membership.by_name["n0"] = Member(name="n0", host="127.0.0.1", port=1)
        async with world as gateway:
            await until(lambda: any("defect" in one.why for one in gateway.client.links), "why")
            (shown,) = gateway.client.links_view().engines
            assert "nobody foresaw this" in shown.why
            assert shown.state == "lost"

    with caplog.at_level(logging.ERROR, "phasescope.fleet"):
        run(case)
    assert "engine n0 is not used any more" in caplog.text
