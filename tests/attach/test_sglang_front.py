"""The facts of SGLang's HTTP server: the middleware in front, the hooks behind it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from service.attach.inside.middleware import Message, Receive, Scope, Send
from service.attach.inside.sglang.front import FrontHooks
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import RequestParsed, RequestTokenized
from tests.attach.front_world import World, answering

BODY = SimpleNamespace(
    model="small", stream=True, n=1, prompt="some text", max_tokens=4, temperature=None, seed=3
)


class Server:
    """A tokenizer manager and its routes as far as the hooks see them."""

    def __init__(self, *outputs: Any, abort: Any = None, status: int = 200) -> None:
        self.world = World(self.app)
        self.hooks = FrontHooks(self.world.front)
        self._outputs, self._abort, self._status = outputs, abort, status

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = SimpleNamespace(default_sampling_params={"temperature": 0.6})
        await self.hooks._handle(self._serve, serving, BODY, None)
        await answering(self._status, b"data: x\n\n", b"")(scope, receive, send)

    async def _serve(self, *args: Any) -> None:
        tokenized = SimpleNamespace(
            rid="s1", input_ids=[1, 2, 3], sampling_params=SimpleNamespace(max_new_tokens=4)
        )
        await self.hooks._tokenize(_answer(tokenized), None, BODY)
        await self.hooks._send_one(_answer(None), None, tokenized)
        # outputs come to another task, which serves all requests
        await asyncio.get_running_loop().create_task(self._receive())

    async def _receive(self) -> None:
        for one in self._outputs:
            await self.hooks._receive(_answer(None), None, one)
        if self._abort is not None:
            self.hooks._aborted(lambda *args: None, None, self._abort)


def _answer(value: Any) -> Any:
    async def original(*args: Any) -> Any:
        return value

    return original


def output(tokens: int, reason: Any = None) -> Any:
    return SimpleNamespace(rids=["s1"], output_ids=[[9] * tokens], finished_reasons=[reason])


def test_a_request_is_followed_to_its_last_token() -> None:
    server = Server(output(1), output(3, {"type": "length", "length": 4}))
    server.world.exchange({"x-request-id": "abc"})

    facts = server.world.sink.facts
    (parsed,) = [one for one in facts if isinstance(one, RequestParsed)]
    assert (parsed.model, parsed.stream, parsed.max_tokens, parsed.seed) == ("small", True, 4, 3)
    assert parsed.temperature == 0.6
    (tokenized,) = [one for one in facts if isinstance(one, RequestTokenized)]
    assert tokenized.prompt_tokens == 3
    (submitted,) = server.world.sink.submitted
    assert (submitted.request_id, submitted.name, submitted.choice) == ("abc", "s1", 0)
    end = server.world.end
    assert (end.reason, end.output_tokens) == (EndReason.MAX_TOKENS, 4)
    assert end.received_ns is not None
    assert tokenized.at_ns < submitted.at_ns < end.received_ns < end.at_ns


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ({"type": "stop", "matched": 2}, EndReason.EOS),
        ({"type": "stop", "matched": "END"}, EndReason.STOP_STRING),
        ({"type": "length", "length": 1}, EndReason.MAX_TOKENS),
        ({"type": "abort", "message": "x", "status_code": None}, EndReason.DELETED),
    ],
)
def test_a_request_ends_as_its_sequence_does(reason: Any, expected: EndReason) -> None:
    server = Server(output(1, reason))
    server.world.exchange()

    assert server.world.end.reason is expected


def test_a_request_that_the_scheduler_has_no_room_for_is_refused() -> None:
    abort = SimpleNamespace(rid="s1", finished_reason={"type": "abort", "status_code": 503})
    server = Server(abort=abort, status=503)
    server.world.exchange()

    assert server.world.end.reason is EndReason.QUEUE_FULL


def test_objects_of_another_shape_cost_one_hook_and_no_request() -> None:
    """After three errors the sidecar hears of it; every request is answered."""
    server = Server(SimpleNamespace())
    answers: list[list[Message]] = [server.world.exchange() for _ in range(5)]

    assert all(one[0]["status"] == 200 for one in answers)
    ((hook, reason, is_all),) = server.world.sink.turned_off
    assert (hook, is_all) == ("_handle_batch_output", False)
    assert reason.startswith("AttributeError")
    assert len(server.world.ended) == 5
