"""The output queue of one request: bounded, read in parts, fair to other tasks."""

from __future__ import annotations

import asyncio

import pytest

from service.engine.plan import Emission, Sample
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.errors import Interrupted
from telemetry.facts.reasons import EndReason


def token(number: int) -> Emission:
    return Emission(1, Sample(number), None)


def test_a_backlog_is_delivered_in_parts_in_order_while_other_tasks_run() -> None:
    async def scenario() -> tuple[list[int], int]:
        queue = OutputQueue(1000, lambda full: None)
        for number in range(100):
            queue.put(token(number))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        seen: list[int] = []
        while len(seen) < 100:
            part = await queue.get()
            assert len(part) <= 16
            seen += [emission.sample.token_id for emission in part if emission.sample]
        task.cancel()
        return seen, turns

    seen, turns = asyncio.run(scenario())
    assert seen == list(range(100))
    assert turns >= 5


def test_full_is_reported_once_and_cleared_when_half_is_read() -> None:
    async def scenario() -> list[bool]:
        told: list[bool] = []
        queue = OutputQueue(40, told.append)
        for number in range(60):
            queue.put(token(number))
        assert told == [True]
        await queue.get()
        await queue.get()
        assert told == [True]
        await queue.get()
        return told

    assert asyncio.run(scenario()) == [True, False]


def test_an_interruption_comes_before_unread_emissions() -> None:
    async def scenario() -> None:
        queue = OutputQueue(40, lambda full: None)
        queue.put(token(1))
        queue.interrupt(EndReason.DELETED)
        queue.interrupt(EndReason.SHUTDOWN)
        await queue.get()

    with pytest.raises(Interrupted) as caught:
        asyncio.run(scenario())
    assert caught.value.reason is EndReason.DELETED


def numbers(emissions: list[Emission]) -> list[int]:
    return [emission.sample.token_id for emission in emissions if emission.sample]


def test_flush_calls_the_consumer_at_once_until_that_returns_false() -> None:
    """No iteration of the event loop lies between a token and its consumer."""

    async def scenario() -> tuple[list[list[int]], list[int]]:
        queue = OutputQueue(1000, lambda full: None)
        seen: list[list[int]] = []

        def consume(emissions: list[Emission]) -> bool:
            seen.append(numbers(emissions))
            return len(seen) < 2

        pushing = asyncio.create_task(queue.push_to(consume))
        await asyncio.sleep(0)
        for number in (1, 2, 3):
            queue.put(token(number))
            assert queue.flush() is (number < 3)
        await pushing
        return seen, numbers(await queue.get())

    assert asyncio.run(scenario()) == ([[1], [2]], [3])


def test_push_to_raises_what_its_consumer_raises_or_the_interruption() -> None:
    """The error does not reach the caller of `flush`, which serves other requests too."""

    def broken(emissions: list[Emission]) -> bool:
        raise ValueError("no")

    async def scenario(interrupted: bool) -> None:
        queue = OutputQueue(1000, lambda full: None)
        pushing = asyncio.create_task(queue.push_to(broken))
        await asyncio.sleep(0)
        if interrupted:
            queue.interrupt(EndReason.DISCONNECT)
        queue.put(token(1))
        assert queue.flush() is not interrupted
        await pushing

    with pytest.raises(ValueError, match="no"):
        asyncio.run(scenario(False))
    with pytest.raises(Interrupted):
        asyncio.run(scenario(True))


def test_push_to_returns_at_once_when_there_is_a_backlog() -> None:
    async def scenario() -> bool:
        queue = OutputQueue(1000, lambda full: None)
        queue.put(token(1))
        await queue.push_to(lambda emissions: True)
        return queue.is_empty

    assert asyncio.run(scenario()) is False
