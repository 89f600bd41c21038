"""What a gateway knows and says of its engines while connections come and go."""

from __future__ import annotations

import asyncio
import logging

import pytest

from service.fleet.membership.members import Member
from service.fleet.wire import messages
from service.process.frames import KvOffered
from telemetry.facts.framing import framed
from tests.fleet.fleet_world import GatewayWorld, NodeWorld, until
from tests.fleet.test_fleet_world import run

FORGED = "no\n2026-01-01 ERROR all is lost \x1b[31m\u202e" + "x" * 400


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
