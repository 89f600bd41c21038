"""Two states of one running server against each other, in short adjacent blocks of load.

A shared machine drifts by more than what is looked for here. So the states alternate in one
server, four blocks at a time in the order ABBA or BAAB: a pair is two neighbours, and a drift
hits both alike. Between blocks the server is idle, its spans are delivered, and its state is
switched. A control does the same with two equal states; what it shows is noise.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contract.client import Exchange, ask, call, completion, now_ns, prompt_ids
from benchmarks.contract.common import Figure, Server, at_most, say, ticking
from telemetry.numbers.quantiles import rank

DRAWS = 4000
DRAIN_S = 60.0
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Load:
    """All streams begin together; a block ends with the last of them. Each is `rounds` requests
    one after the other, of different lengths, so that requests end, and their traces are sent,
    while others decode; together they give `output` tokens."""

    streams: int
    prompt: int
    output: int
    rounds: int = 1

    def lengths(self, stream: int) -> list[int]:
        """Output tokens of a stream's requests: no two streams' ends coincide for long."""
        mean = self.output // self.rounds
        spread = mean // 3
        steps = [spread * (index - (self.rounds - 1) / 2) for index in range(self.rounds)]
        found = [mean + int(step) for step in steps]
        found[-1] += self.output - sum(found)
        turn = stream % self.rounds
        return found[turn:] + found[:turn]


@dataclass(frozen=True)
class Block:
    """What one block measured, in the client: tokens over the whole block, gaps while all
    streams decode."""

    state: str
    tokens_per_s: float
    gaps_ms: Floats

    def summary(self) -> dict[str, float | str | int]:
        return {
            "state": self.state,
            "tokens_per_s": round(self.tokens_per_s, 3),
            "itl_p50_ms": round(gap_at(self.gaps_ms, 0.5), 4),
            "itl_p99_ms": round(gap_at(self.gaps_ms, 0.99), 4),
            "gaps": len(self.gaps_ms),
        }


Pair = tuple[Block, Block]  # (base, other)


async def put(port: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and answer of a PUT."""
    exchange = await Exchange.begin(port, "PUT", path, body)
    try:
        status = await exchange.head()
        raw = b"".join([piece async for piece in exchange.pieces()])
    finally:
        exchange.leave()
    return status, json.loads(raw) if raw else None


async def require_put(port: int, path: str, body: dict[str, Any]) -> None:
    """Until it is taken: a request that has just ended may still be in the way."""
    for _ in range(50):
        status, answer = await put(port, path, body)
        if status == 200:
            return
        if status != 409:
            break
        await asyncio.sleep(0.1)
    raise SystemExit(f"PUT {path} {body} was answered {status}: {answer}")


async def until_delivered(server: Server) -> dict[str, Any]:
    """The books of tracing once nothing is on its way any more."""
    deadline_ns = now_ns() + int(DRAIN_S * 1e9)
    async with ticking("waiting for spans to be delivered"):
        while True:
            books: dict[str, Any] = (await call(server.port, "GET", "/debug/tracing"))[1]
            if not books["traces_queued"] or now_ns() > deadline_ns:
                return books
            await asyncio.sleep(0.05)


async def run_block(server: Server, load: Load, state: str, seed: str) -> Block:
    """Load the server once. SystemExit when a stream is not whole."""

    async def stream(index: int) -> list[list[int]]:
        found = []
        for turn, output in enumerate(load.lengths(index)):
            prompt = prompt_ids(f"{seed}.{index}.{turn}", load.prompt)
            reply = await ask(server.port, completion(prompt, output))
            found.append(reply.token_ns)
        return found

    begin_ns = now_ns()
    streams = await asyncio.gather(*(stream(index) for index in range(load.streams)))
    tokens = sum(len(stamps) for replies in streams for stamps in replies)
    if tokens != load.streams * load.output:
        raise SystemExit(f"{tokens} tokens came, {load.streams * load.output} were asked for")
    end_ns = max(replies[-1][-1] for replies in streams)
    gaps_ms = _steady_gaps_ms(streams)
    if not len(gaps_ms):
        raise SystemExit("the streams are too short: they never decode all together")
    return Block(state, tokens / ((end_ns - begin_ns) / 1e9), gaps_ms)


def _steady_gaps_ms(streams: list[list[list[int]]]) -> Floats:
    """Gaps from when all streams have begun until the first has nothing more to ask. Before
    that, it is chance which of them meets the others' prompts, and that chance is larger than
    what is looked for."""
    from_ns = max(replies[0][0] for replies in streams)
    until_ns = min(replies[-1][-1] for replies in streams)
    return np.array(
        [
            (end - start) / 1e6
            for replies in streams
            for stamps in replies
            for start, end in itertools.pairwise(stamps)
            if start >= from_ns and end <= until_ns
        ]
    )


async def run_quad(
    base: str, other: str, number: int, one: Callable[[str], Awaitable[Block]]
) -> list[Pair]:
    """Four blocks in the order of `quad_order`."""
    blocks: list[Block] = []
    for state in quad_order(base, other, number):
        blocks.append(await one(state))
        shown = blocks[-1].summary()
        say(f"  {shown['state']}: {shown['tokens_per_s']} tokens/s, p99 {shown['itl_p99_ms']} ms")
    return pairs_of(blocks, number)


def quad_order(base: str, other: str, number: int) -> list[str]:
    """ABBA, and BAAB with every second number."""
    return [base, other, other, base] if number % 2 == 0 else [other, base, base, other]


def pairs_of(quad: Sequence[Block], number: int) -> list[Pair]:
    """Neighbours of four blocks that were run in that order, the base first."""
    first, second, third, fourth = quad
    if number % 2 == 0:
        return [(first, second), (fourth, third)]
    return [(second, first), (third, fourth)]


# --- what pairs say ----------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What the other state costs against the base, in percent, with its 95 % interval.
    Positive is worse: fewer tokens a second, longer gaps."""

    percent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.percent:+.2f} % ({self.low:+.2f} to {self.high:+.2f})"

    def as_dict(self) -> dict[str, float]:
        return {"percent": self.percent, "low": self.low, "high": self.high}


def cost_figure(name: str, cost: Cost, control: Cost, limit_percent: float) -> Figure:
    """At most so much, by the upper end of the interval. Not measured where two equal states differ
    by more than that, by either end of theirs: the machine varied more than what is looked for."""
    varied = max(-control.low, control.high)
    return at_most(name, cost.high if varied <= limit_percent else None, limit_percent)


def costs(pairs: list[Pair], seed: int = 1) -> dict[str, Cost]:
    """Throughput (mean of the pairs' log ratios) and ITL p50 and p99 (of all gaps of each
    state), with intervals from drawing whole pairs again and again."""
    draw = np.random.default_rng(seed)
    picks = draw.integers(0, len(pairs), (DRAWS, len(pairs)))
    ratios = np.log([other.tokens_per_s / base.tokens_per_s for base, other in pairs])
    found = {
        "throughput": _cost(
            _slowdown(float(ratios.mean())),
            [_slowdown(float(mean)) for mean in ratios[picks].mean(axis=1)],
        )
    }
    for share in (50, 99):
        found[f"itl_p{share}"] = _cost(
            _longer(pairs, range(len(pairs)), share), [_longer(pairs, p, share) for p in picks]
        )
    return found


def _slowdown(log_ratio: float) -> float:
    return 100 * (1 - math.exp(log_ratio))


def _longer(pairs: list[Pair], pick: Any, share: int) -> float:
    base, other = (
        gap_at(np.concatenate([pairs[i][side].gaps_ms for i in pick]), share / 100)
        for side in (0, 1)
    )
    return 100 * (other / base - 1)


def _cost(value: float, drawn: list[float]) -> Cost:
    ordered = sorted(drawn)
    low, high = (ordered[rank(share, len(ordered)) - 1] for share in (0.025, 0.975))
    return Cost(value, low, high)


def gap_at(gaps_ms: Floats, share: float) -> float:
    """The server's own quantile, of as many values as numpy sorts."""
    ordered = np.sort(gaps_ms)
    return float(ordered[rank(share, len(ordered)) - 1])
