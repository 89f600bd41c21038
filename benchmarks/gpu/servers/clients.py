"""Clients of a server on a GPU: prompts, streams that go on in the background, and their times."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contract.client import COMPLETIONS, Body, Exchange, completion, now_ns


@dataclass
class Answer:
    """One prompt's text, as token ids, with the times of its pieces."""

    sent_ns: int
    text: list[int] = field(default_factory=list)
    at_ns: list[int] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return (self.at_ns[0] - self.sent_ns) / 1e6


def gaps_ms(answers: Iterable[Answer], begin_ns: int, end_ns: int) -> list[float]:
    """Between neighbouring pieces of an answer, of those that came in that time."""
    return [
        (later - earlier) / 1e6
        for one in answers
        for earlier, later in zip(one.at_ns, one.at_ns[1:], strict=False)
        if begin_ns <= later < end_ns
    ]


def prompt_of(name: str, tokens: int) -> list[int]:
    """Token ids that no other name begins with, of any dummy vocabulary."""
    draw = random.Random(name)
    return [draw.randrange(5, 500) for _ in range(tokens)]


async def chunks(port: int, body: Body) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a streamed completion, as they come. Raises ValueError for an error of the
    server, and OSError and EOFError where it hangs up."""
    exchange = await Exchange.begin(port, "POST", COMPLETIONS, body)
    try:
        if (status := await exchange.head()) != 200:
            said = b"".join([piece async for piece in exchange.pieces()])
            raise ValueError(f"{status} {said[:300].decode(errors='replace')}")
        async for event in exchange.events():
            if event == b"[DONE]":
                return
            chunk = json.loads(event)
            if "error" in chunk:
                raise ValueError(chunk["error"])
            yield chunk
    finally:
        exchange.leave()


async def ask(port: int, prompt: list[int] | str, tokens: int, answer: Answer) -> None:
    """Fill `answer` as the stream comes. Raises as `chunks` does."""
    body = completion(prompt, tokens, return_token_ids=True)
    body.pop("logprobs")  # for them the GPU would wait for the host
    async for chunk in chunks(port, body):
        for choice in chunk["choices"]:
            if choice.get("token_ids"):
                answer.text += choice["token_ids"]
                answer.at_ns.append(now_ns())


async def stream(
    port: int, name: str, prompt_tokens: int, tokens: int, answers: list[Answer]
) -> None:
    """Texts one after the other, until cancelled; each is appended to `answers` as it begins."""
    number = 0
    while True:
        number += 1
        answers.append(answer := Answer(now_ns()))
        await ask(port, prompt_of(f"{name} {number}", prompt_tokens), tokens, answer)


@asynccontextmanager
async def in_background(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Until the block ends. Raises ValueError if some of it has ended by itself."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
        if any(task.done() for task in tasks):
            raise ValueError("a client's stream has ended before it should")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
