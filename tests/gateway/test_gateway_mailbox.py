"""The box between the engine and one reader: bounded, in parts, and fair to others."""

from __future__ import annotations

import asyncio

import pytest

from service.engine.plan import Emission, Sample
from service.gateway.engine_client.mailbox import Mailbox
from service.gateway.errors import Interrupted
from telemetry.facts.reasons import EndReason


def token(number: int) -> Emission:
    return Emission(1, Sample(number), None)


def test_a_backlog_comes_in_parts_in_order_with_turns_for_others_between() -> None:
    async def scenario() -> tuple[list[int], int]:
        box = Mailbox(1000, lambda full: None)
        for number in range(100):
            box.put(token(number))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        seen: list[int] = []
        while len(seen) < 100:
            part = await box.take()
            assert len(part) <= 16
            seen += [emission.sample.token_id for emission in part if emission.sample]
        task.cancel()
        return seen, turns

    seen, turns = asyncio.run(scenario())
    assert seen == list(range(100))
    assert turns >= 5


def test_fullness_is_told_once_and_taken_back_when_half_is_read() -> None:
    async def scenario() -> list[bool]:
        told: list[bool] = []
        box = Mailbox(40, told.append)
        for number in range(60):
            box.put(token(number))
        assert told == [True]
        await box.take()
        await box.take()
        assert told == [True]
        await box.take()
        return told

    assert asyncio.run(scenario()) == [True, False]


def test_an_interruption_comes_before_whatever_lies_in_the_box() -> None:
    async def scenario() -> None:
        box = Mailbox(40, lambda full: None)
        box.put(token(1))
        box.interrupt(EndReason.DELETED)
        box.interrupt(EndReason.SHUTDOWN)
        await box.take()

    with pytest.raises(Interrupted) as caught:
        asyncio.run(scenario())
    assert caught.value.reason is EndReason.DELETED


def numbers(emissions: list[Emission]) -> list[int]:
    return [emission.sample.token_id for emission in emissions if emission.sample]


def test_a_flow_hands_over_at_once_until_it_is_told_to_stop() -> None:
    """No turn of the event loop lies between a token and its reader."""

    async def scenario() -> tuple[list[list[int]], list[int]]:
        box = Mailbox(1000, lambda full: None)
        seen: list[list[int]] = []

        def consume(emissions: list[Emission]) -> bool:
            seen.append(numbers(emissions))
            return len(seen) < 2

        flowing = asyncio.create_task(box.flow(consume))
        await asyncio.sleep(0)
        for number in (1, 2, 3):
            box.put(token(number))
            assert box.hand_over() is (number < 3)
        await flowing
        return seen, numbers(await box.take())

    assert asyncio.run(scenario()) == ([[1], [2]], [3])


def test_a_flow_ends_with_what_its_reader_raises_or_the_interruption() -> None:
    """An error does not reach whoever hands over: he serves others too."""

    def broken(emissions: list[Emission]) -> bool:
        raise ValueError("no")

    async def scenario(interrupted: bool) -> None:
        box = Mailbox(1000, lambda full: None)
        flowing = asyncio.create_task(box.flow(broken))
        await asyncio.sleep(0)
        if interrupted:
            box.interrupt(EndReason.DISCONNECT)
        box.put(token(1))
        assert box.hand_over() is not interrupted
        await flowing

    with pytest.raises(ValueError, match="no"):
        asyncio.run(scenario(False))
    with pytest.raises(Interrupted):
        asyncio.run(scenario(True))


def test_a_flow_returns_at_once_when_there_is_a_backlog() -> None:
    async def scenario() -> bool:
        box = Mailbox(1000, lambda full: None)
        box.put(token(1))
        await box.flow(lambda emissions: True)
        return box.is_empty

    assert asyncio.run(scenario()) is False
