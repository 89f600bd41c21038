"""Chunks and writes of a stream: the quick ways give what the plain ways give."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from service.gateway.errors import ApiError, internal
from service.gateway.generation.choice import Choice, Delta
from service.gateway.generation.delivery import Delivery
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.responses import ChunkWriter, ResponseHead, delta_event
from service.gateway.ingest.schemas import Operation
from service.text.dummy_tokenizer import dummy_tokenizer
from telemetry.facts.clock import ManualClock
from telemetry.facts.recorder import Lane

TEXTS = ["a", ' "quoted" \\ \n', "\0", "é\u2028\U0001f600", '","text":"\\u0000"']


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_chunk_from_the_frame_equals_one_from_scratch(
    operation: Operation, include_usage: bool
) -> None:
    """Byte for byte, whatever the text, also where model and request are named like JSON."""
    tokenizer = dummy_tokenizer("tiny")
    head = ResponseHead(operation, 'id "\0"', 1, 'm","text":"\\u0000', False, include_usage)
    writer = ChunkWriter(head, tokenizer)
    choices = [Choice(index, index, tokenizer, ()) for index in (0, 3)]
    for text in TEXTS:
        for choice in choices:
            for finish in (None, "stop"):
                delta = Delta(text, [], finish)
                plain = delta_event(head, choice, delta, tokenizer)
                assert writer.chunk(choice, delta) == plain


class SlowServer:
    """An ASGI server whose `send` waits for `drained` while it is blocked."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.blocked = False
        self.drained = asyncio.Event()

    async def send(self, message: Message) -> None:
        if self.blocked:
            await self.drained.wait()
        self.sent.append(message)


def test_a_write_that_cannot_be_finished_is_finished_later_and_in_order() -> None:
    """And the callback is called only while a write is blocked."""

    async def scenario() -> tuple[list[Any], list[bool]]:
        server, calls = SlowServer(), list[bool]()
        delivery = Delivery(server.send, RequestRecorder(Lane(), ManualClock(), "r"), calls.append)
        assert delivery.write(b"one")
        server.blocked = True
        assert not delivery.write(b"two")
        rest = asyncio.create_task(delivery.send_events([b"three"]))
        await asyncio.sleep(0)
        assert [message["body"] for message in server.sent] == [b"one"]
        server.blocked = False
        server.drained.set()
        await rest
        return [message["body"] for message in server.sent], calls

    assert asyncio.run(scenario()) == ([b"one", b"two", b"three"], [True, False])


def test_an_error_whose_own_event_cannot_be_written_is_told_as_its_body() -> None:
    """No stream breaks off without a word."""

    def broken(error: ApiError) -> bytes:
        raise RecursionError

    async def scenario() -> list[Message]:
        server = SlowServer()
        recorder = RequestRecorder(Lane(), ManualClock(), "r")
        delivery = Delivery(server.send, recorder, list[bool]().append)
        delivery.failed = broken
        await delivery.begin_stream(typed=False, waiting_before=None)
        await delivery.send_error(internal())
        return server.sent

    last = asyncio.run(scenario())[-1]
    assert (last["body"], last["more_body"]) == (b"data: " + internal().body() + b"\n\n", False)
