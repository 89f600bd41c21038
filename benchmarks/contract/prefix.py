"""A shared prompt prefix is computed once, for one tenant and one salt only.

Each round draws a fresh 600-token system prompt as token ids, so that every length is exact, and
a chat of about as many tokens. A prompt's last token is always computed, so the longest possible
hit is the whole blocks below the prompt's end.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contract.client import CHAT, Body, NotSupported, Reply, ask, completion, prompt_ids
from benchmarks.contract.common import (
    Figure,
    Options,
    Report,
    Server,
    at_most,
    equal,
    say,
    ticking,
)
from benchmarks.machine import spread

BLOCK_TOKENS = 16
SYSTEM_TOKENS, TURN_TOKENS = 600, 40
REPEATED_TOKENS = 608  # whole blocks: a repeat must still compute the last one
FLAGS = ("--kv-memory", "1GiB", "--max-num-seqs", "4", "--queue-limit", "64")
WORDS = ("river", "stone", "lamp", "cloud", "paper", "green", "seven", "early", "north", "table")


@dataclass
class Round:
    """TTFT in ms and cached tokens by case, and which cached counts were not as expected."""

    ttft_ms: dict[str, float] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def hit_tokens(shared: int, prompt: int) -> int:
    """Whole blocks that both prompts share, and never the whole prompt."""
    return min(shared, prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS


class Asker:
    """Sends one case after another and compares the cached tokens with the rule."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.round = Round()

    async def case(
        self, name: str, body: Body, expected: int | None, tenant: str = "blue", path: str = ""
    ) -> Reply:
        headers = {"x-tenant": tenant}
        reply = await ask(self._server.port, body, path or "/v1/completions", headers)
        if reply.cached_tokens is None:
            raise NotSupported("usage has no prompt_tokens_details.cached_tokens")
        facts = await self._server.facts_of(reply.request_id) or {}
        self.round.ttft_ms[name] = reply.ttft_ms
        self.round.cached[name] = reply.cached_tokens
        if expected is not None and reply.cached_tokens != expected:
            self.round.wrong.append(f"{name}: {reply.cached_tokens} and not {expected}")
        if facts.get("cached_tokens") != reply.cached_tokens:
            self.round.wrong.append(f"{name}: the facts say {facts.get('cached_tokens')}")
        return reply


async def completions(asker: Asker, server: Server, seed: int) -> None:
    system = prompt_ids(seed, SYSTEM_TOKENS)

    def body(turn: int, **more: Any) -> Body:
        return completion(system + prompt_ids(seed + turn, TURN_TOKENS), 2, **more)

    shared = hit_tokens(SYSTEM_TOKENS, SYSTEM_TOKENS + TURN_TOKENS)
    await asker.case("first", body(1), 0)
    await asker.case("second", body(2), shared)
    await asker.case("other tenant", body(3), 0, tenant="green")
    await asker.case("other salt", body(4, cache_salt="pepper"), 0)
    await asker.case("same salt", body(5, cache_salt="pepper"), shared)
    await asker.case("opted out", body(6, cache_prefix=False), 0)
    whole = prompt_ids(seed + 7, REPEATED_TOKENS)
    await asker.case("whole, first", completion(whole, 2), 0)
    most = hit_tokens(REPEATED_TOKENS, REPEATED_TOKENS)
    await asker.case("whole, again", completion(whole, 2), most)
    await server.require("POST", "/debug/cache/flush")
    await asker.case("after a flush", body(8), 0)


async def chat(asker: Asker, seed: int) -> None:
    draw = random.Random(seed)
    system = " ".join(draw.choice(WORDS) for _ in range(SYSTEM_TOKENS))

    def body(question: str) -> Body:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        common = completion("", 2, logprobs=True, top_logprobs=0, messages=messages)
        return {name: value for name, value in common.items() if name != "prompt"}

    # the template's own words before the system prompt may be shared, a block of them at most
    first = await asker.case("chat, first", body("Which word comes first?"), None, path=CHAT)
    second = await asker.case("chat, second", body("How many are there?"), None, path=CHAT)
    again = await asker.case("chat, again", body("How many are there?"), None, path=CHAT)
    prompt = (again.usage or {})["prompt_tokens"]
    note = asker.round.wrong.append
    if (first.cached_tokens or 0) > 2 * BLOCK_TOKENS:
        note(f"chat, first: {first.cached_tokens} of another prompt")
    if again.cached_tokens != hit_tokens(prompt, prompt):
        note(f"chat, again: {again.cached_tokens} of {prompt}")
    cached = second.cached_tokens or 0
    if cached % BLOCK_TOKENS or not SYSTEM_TOKENS - BLOCK_TOKENS <= cached < prompt:
        note(f"chat, second: {cached} of {prompt}")


async def run(options: Options) -> Report:
    rounds: list[Round] = []
    async with Server(*FLAGS) as server:
        await ask(server.port, completion(prompt_ids(1, 600), 4))  # warm-up
        for number in range(2 if options.quick else 7):
            asker = Asker(server)
            async with ticking(f"prefix round {number + 1}"):
                await completions(asker, server, seed=1000 * (number + 1))
                await chat(asker, seed=number)
            rounds.append(asker.round)
            for line in asker.round.wrong:
                say(f"  round {number + 1}: {line}")
        last = await server.until_empty()
    return report(rounds, server, last["blocks_used"])


def ratios(rounds: list[Round], upper: str, lower: str) -> list[float]:
    return [one.ttft_ms[upper] / one.ttft_ms[lower] for one in rounds]


def report(rounds: list[Round], server: Server, blocks_used: int) -> Report:
    text, talk = ratios(rounds, "second", "first"), ratios(rounds, "chat, second", "chat, first")
    wrong = [line for one in rounds for line in one.wrong]
    figures: list[Figure] = [
        at_most("TTFT second/first, median", statistics.median(text), 1 / 3),
        at_most("chat TTFT second/first, median", statistics.median(talk), 1 / 3),
        equal("wrong cached token counts", len(wrong), 0),
        equal("blocks used at the end", blocks_used, 0),
    ]
    cases = list(rounds[0].ttft_ms)
    rows: list[list[Any]] = [["case", "TTFT ms median", "min", "max", "cached tokens"]]
    detail: dict[str, Any] = {"ttft_ms": {}, "cached_tokens": {}, "wrong": wrong}
    for case in cases:
        found = spread(one.ttft_ms[case] for one in rounds)
        cached = sorted({one.cached[case] for one in rounds})
        detail["ttft_ms"][case], detail["cached_tokens"][case] = found, cached
        rows.append([case, found["median"], found["min"], found["max"], cached])
    detail["ratio"], detail["chat_ratio"] = spread(text), spread(talk)
    return Report("prefix", figures, {"server": server.flags}, detail, rows)
