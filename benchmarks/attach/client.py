"""Streaming clients of vLLM with exact stamps: one socket a request, every token counted.

vLLM says which tokens a piece holds only when asked (`return_token_ids`); ids are counted and
dropped. Stamps are CLOCK_MONOTONIC, as those of the attached facts.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.contract.client import COMPLETIONS, Body, Exchange, completion, now_ns

REQUEST_ID = "x-request-id"
ANSWER_WITHIN_S = 300.0


@dataclass
class Stream:
    """One request as its client saw it. `token_ns` has a stamp for each token of choice 0.
    `due_ns` is 0 where it was due when it was sent."""

    request_id: str
    due_ns: int = 0
    begun_ns: int = 0
    sent_ns: int = 0
    head_ns: int | None = None
    token_ns: list[int] = field(default_factory=list)
    end_ns: int | None = None
    status: int = 0
    finish: str | None = None
    error: str | None = None
    left: bool = False

    @property
    def is_whole(self) -> bool:
        """Every byte came, and the server says that it is whole."""
        return self.status == 200 and self.error is None and self.finish is not None

    @property
    def late_ms(self) -> float:
        """How long after it was due the client itself began to send it."""
        return (self.begun_ns - self.due_ns) / 1e6 if self.due_ns else 0.0

    @property
    def gaps_ns(self) -> list[tuple[int, int]]:
        """Begin and end of each; tokens of one piece have none between them."""
        return [(a, b) for a, b in pairwise(self.token_ns) if b > a]

    def take(self, event: bytes) -> None:
        """Work one event in."""
        if event == b"[DONE]":
            return
        found = json.loads(event)
        if "error" in found:
            self.error = str(found["error"])[:200]
            return
        at_ns = now_ns()
        for choice in found.get("choices", ()):
            if choice["index"] == 0:
                self.token_ns += [at_ns] * len(choice.get("token_ids") or ())
                self.finish = choice.get("finish_reason") or self.finish


def tokens_of(prompt: list[int] | str, max_tokens: int, **more: Any) -> Body:
    """A greedy stream of exactly so many tokens, each counted."""
    body = completion(prompt, max_tokens, return_token_ids=True, **more)
    del body["logprobs"]  # computing them is work that the benchmarks do not ask about
    return {name: value for name, value in body.items() if value is not None}


async def ask(
    port: int,
    body: Body,
    request_id: str,
    *,
    path: str = COMPLETIONS,
    leave_after_s: float | None = None,
    leave_after_tokens: int | None = None,
    pause_s: float = 0.0,
    headers: dict[str, str] | None = None,
    into: Stream | None = None,
) -> Stream:
    """One stream to its end, or until the client leaves. Never raises for what a server does: that
    is in the stream."""
    stream = into or Stream(request_id)
    stream.begun_ns = now_ns()
    limit_s = ANSWER_WITHIN_S if leave_after_s is None else leave_after_s
    try:
        async with asyncio.timeout(limit_s):
            await _read(port, body, path, stream, leave_after_tokens, pause_s, headers or {})
    except TimeoutError:
        stream.left = leave_after_s is not None
        if not stream.left:
            stream.error = f"no end within {limit_s:.0f} s"
    except (OSError, EOFError, ValueError) as error:
        stream.error = f"{type(error).__name__}: {error}"[:200]
    return stream


async def _read(
    port: int, body: Body, path: str, stream: Stream, leave_after_tokens: int | None,
    pause_s: float, headers: dict[str, str],
) -> None:  # fmt: skip
    exchange = await Exchange.begin(
        port, "POST", path, body, {REQUEST_ID: stream.request_id, **headers}
    )
    stream.sent_ns = exchange.sent_ns
    try:
        stream.status = await exchange.head()
        stream.head_ns = now_ns()
        if stream.status != 200:
            raw = b"".join([piece async for piece in exchange.pieces()])
            stream.error = raw.decode(errors="replace")[:200]
            return
        async for event in exchange.events():
            stream.take(event)
            if leave_after_tokens is not None and len(stream.token_ns) >= leave_after_tokens:
                stream.left = True
                return
            if pause_s:
                await asyncio.sleep(pause_s)
        stream.end_ns = now_ns()
    finally:
        exchange.leave()


async def get_text(port: int, path: str) -> tuple[int, str]:
    """Status and body of a page that is no JSON, such as /metrics."""
    exchange = await Exchange.begin(port, "GET", path)
    try:
        status = await exchange.head()
        raw = b"".join([piece async for piece in exchange.pieces()])
    finally:
        exchange.leave()
    return status, raw.decode()
