"""Questions of a gateway process to the main process, and answers that come late."""

from __future__ import annotations

import asyncio
import os
import socket

from service.gateway.processes import messages
from service.gateway.processes.facts_out import FactsOut
from service.gateway.processes.main_link import MainLink
from service.gateway.processes.shared_count import SharedCount
from service.gateway.server_state import Drain, Health
from service.process.heartbeat import shared_file
from service.process.link import Link
from telemetry.metrics.connections import ConnectionCounts
from telemetry.metrics.ingest_counts import IngestCounts


class World:
    """A gateway process' link, and the main process' end of it; to be made on an event loop."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        number = shared_file("test")
        count = SharedCount(number, creates=True)
        os.close(number)
        self.main, self._link = Link(theirs), Link(ours)
        out = FactsOut(self._link, count, (), lambda: (0, 0), ConnectionCounts(), IngestCounts())
        self.given_up: list[int] = []
        self.process = MainLink(self._link, out, {}, Health(), Drain(), self.given_up.append)
        self.process.start()

    async def said(self) -> messages.ToMain:
        """The next message to the main process, one at a time."""
        async with asyncio.timeout(20):
            while not (found := self.main.receive()):
                await asyncio.sleep(0.005)
        (only,) = found
        return messages.to_main_decoder.decode(only)

    def answer(self, question: messages.ToMain, granted: bool) -> None:
        assert isinstance(question, messages.Claim)
        self.main.send(messages.packed(messages.Claimed(question.number, granted)))

    async def close(self) -> None:
        self.main.close()
        async with asyncio.timeout(20):
            await self.process.stop.wait()
        self._link.close()


def test_an_id_that_is_granted_when_nobody_waits_any_more_is_released() -> None:
    """The main process was busy; the request has got another id, and its client's stays free."""

    async def scenario() -> None:
        world = World()
        assert not await world.process.claim("late")
        question = await world.said()
        world.answer(question, granted=True)

        assert await world.said() == messages.Release("late")
        await world.close()

    asyncio.run(scenario())


def test_a_process_learns_which_engine_was_given_up() -> None:
    async def scenario() -> list[int]:
        world = World()
        health = messages.EngineHealthIs(None, None, 1, 1, given_up_pid=7)
        world.main.send(messages.packed(health))
        async with asyncio.timeout(20):
            while not world.given_up:
                await asyncio.sleep(0.005)
        await world.close()
        return world.given_up

    assert asyncio.run(scenario()) == [7]


def test_a_claim_that_is_answered_in_time_is_kept_and_a_late_refusal_releases_nothing() -> None:
    async def scenario() -> None:
        world = World()
        assert not await world.process.claim("refused")
        world.answer(await world.said(), granted=False)
        claiming = asyncio.ensure_future(world.process.claim("mine"))
        question = await world.said()
        world.answer(question, granted=True)

        assert await claiming
        world.process.release("mine")
        assert await world.said() == messages.Release("mine")
        await world.close()

    asyncio.run(scenario())
