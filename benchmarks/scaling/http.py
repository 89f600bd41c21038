"""The end-to-end half of `benchmarks.scaling`: ITL and memory of a real server by batch size."""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import dataclass

from benchmarks.contract.client import NotSupported, Reply, ask, completion
from benchmarks.contract.common import Server, say, ticking
from benchmarks.machine import rss_kib
from service.engine.kv.blocks import blocks_for

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 48


@dataclass(frozen=True)
class HttpPoint:
    """One batch size in one round. `blocks_used` is the most that was seen and `rss_mib` the
    engine's memory then, None when the streams were over too soon to look; `blocks_needed` is
    what all streams hold at their ends."""

    batch: int
    round: int
    itl_ms: float
    blocks_used: int | None
    blocks_needed: int
    rss_mib: float | None


def gaps_together_ms(replies: list[Reply]) -> list[float]:
    """Gaps between tokens while every stream was decoding, in ms; else all of them."""
    begin_ns = max(reply.token_ns[0] for reply in replies)
    end_ns = min(reply.token_ns[-1] for reply in replies)
    together, every = [], []
    for reply in replies:
        for earlier, later in zip(reply.token_ns, reply.token_ns[1:], strict=False):
            gap_ms = (later - earlier) / 1e6
            every.append(gap_ms)
            if earlier >= begin_ns and later <= end_ns:
                together.append(gap_ms)
    return together or every


def prompt(draw: random.Random, vocab: int) -> list[int]:
    """Token ids that no other prompt begins with, above the special ones."""
    return [draw.randrange(100, vocab) for _ in range(PROMPT_TOKENS)]


async def one_batch(
    server: Server, vocab: int, block_tokens: int, batch: int, number: int
) -> HttpPoint:
    """`batch` streams at once. Raises NotSupported when one of them fails."""
    draw = random.Random(f"{number}-{batch}")
    bodies = [completion(prompt(draw, vocab), OUTPUT_TOKENS) for _ in range(batch)]
    streams = [asyncio.create_task(ask(server.port, body)) for body in bodies]
    blocks_used, rss_mib = 0, None
    async with ticking(f"{batch} streams over HTTP"):
        while not all(stream.done() for stream in streams):
            seen = await server.snapshot()
            if seen["blocks_used"] > blocks_used:
                blocks_used, rss_mib = seen["blocks_used"], rss_kib(server.engine_pid) / 1024
            await asyncio.wait(streams, timeout=0.5)
    replies = await asyncio.gather(*streams)
    unfinished = [reply.error for reply in replies if not reply.done]
    if unfinished:
        raise NotSupported(f"{len(unfinished)} of {batch} streams failed: {unfinished[0]}")
    itl_ms = statistics.median(gaps_together_ms(replies))
    needed = batch * blocks_for(PROMPT_TOKENS + OUTPUT_TOKENS, block_tokens)
    return HttpPoint(batch, number, itl_ms, blocks_used or None, needed, rss_mib)


async def measure_http(
    flags: list[str], vocab: int, block_tokens: int, batches: tuple[int, ...], rounds: int
) -> list[HttpPoint]:
    """Batch sizes interleaved over rounds; one warm-up first."""
    points: list[HttpPoint] = []
    async with Server(*flags) as server:
        await one_batch(server, vocab, block_tokens, min(2, batches[-1]), 0)
        for number in range(1, rounds + 1):
            for batch in batches:
                points.append(await one_batch(server, vocab, block_tokens, batch, number))
                say(f"round {number}: {batch} streams, ITL {points[-1].itl_ms:.1f} ms")
    return points
