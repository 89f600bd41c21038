"""Short blocks of load on a vLLM, measured as `benchmarks.paired` measures ours."""

from __future__ import annotations

import asyncio

import numpy as np

from benchmarks.attach.client import Stream, ask, tokens_of
from benchmarks.contract.client import NotSupported, now_ns, prompt_ids
from benchmarks.paired import Block, Floats, Load


async def run_block(port: int, load: Load, state: str, seed: str) -> Block:
    """Load a server once. NotSupported when a stream is not whole."""

    async def user(index: int) -> list[Stream]:
        found = []
        for turn, output in enumerate(load.lengths(index)):
            name = f"{seed}.{index}.{turn}"
            found.append(await ask(port, tokens_of(prompt_ids(name, load.prompt), output), name))
        return found

    begin_ns = now_ns()
    users = await asyncio.gather(*(user(index) for index in range(load.streams)))
    return block_of(users, load, state, begin_ns)


def block_of(users: list[list[Stream]], load: Load, state: str, begin_ns: int) -> Block:
    """What a block says; NotSupported where it says nothing."""
    streams = [stream for replies in users for stream in replies]
    for stream in streams:
        if not stream.is_whole:
            raise NotSupported(f"a stream of a block is not whole: {stream.error}")
    tokens = sum(len(stream.token_ns) for stream in streams)
    if tokens != load.streams * load.output:
        raise NotSupported(f"{tokens} tokens came, {load.streams * load.output} were asked for")
    gaps_ms = steady_gaps_ms(users)
    if not len(gaps_ms):
        raise NotSupported("the streams are too short: they never decode all together")
    end_ns = max(replies[-1].token_ns[-1] for replies in users)
    return Block(state, tokens / ((end_ns - begin_ns) / 1e9), gaps_ms)


def steady_gaps_ms(users: list[list[Stream]]) -> Floats:
    """Gaps from when all users have begun until the first has nothing more to ask: outside it is
    chance who meets the others' prompts."""
    from_ns = max(replies[0].token_ns[0] for replies in users)
    until_ns = min(replies[-1].token_ns[-1] for replies in users)
    return np.array(
        [
            (end_ns - begin_ns) / 1e6
            for replies in users
            for stream in replies
            for begin_ns, end_ns in stream.gaps_ns
            if begin_ns >= from_ns and end_ns <= until_ns
        ]
    )
