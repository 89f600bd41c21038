"""Users who ask for everything that an attached vLLM may meet, drawn from their seeds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks.attach.client import Stream, ask, tokens_of
from benchmarks.contract.client import Body, now_ns, prompt_ids
from lab.load.workload.words import WORDS

# a pool of 1,280 tokens for eight sequences of up to 1,024: they preempt one another
SMALL_POOL = (
    "--max-model-len", "1024", "--num-gpu-blocks-override", "40", "--max-num-seqs", "8",
    "--max-num-batched-tokens", "256",
)  # fmt: skip
KINDS = {
    "completion": 4.0,
    "long output": 2.0,
    "long prompt": 1.5,
    "shared prefix": 2.0,
    "json_schema": 1.0,
    "disconnect": 1.0,
    "refused": 1.0,
}
SHARED = prompt_ids("shared", 256)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "London", "Rome", "Oslo"]},
        "large": {"type": "boolean"},
    },
    "required": ["city", "large"],
    "additionalProperties": False,
}
FAILS = ("refused",)
LEAVES = ("disconnect",)
Told = Callable[[str, Stream], Awaitable[None]]


@dataclass
class Users:
    """`count` closed-loop clients until `end_ns`; `told` hears of each request after its end."""

    port: int
    count: int
    told: Told
    name: str = "u"
    kinds: dict[str, float] = field(default_factory=lambda: dict(KINDS))
    asked: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    is_stopped: bool = False

    def stop(self) -> None:
        """No new requests."""
        self.is_stopped = True

    async def run(self, end_ns: int) -> None:
        await asyncio.gather(*(self._user(index, end_ns) for index in range(self.count)))

    async def _user(self, index: int, end_ns: int) -> None:
        draw, turn = random.Random(f"{self.name}{index}"), 0
        while now_ns() < end_ns and not self.is_stopped:
            kind = draw.choices(list(self.kinds), list(self.kinds.values()))[0]
            request_id, turn = f"{self.name}{index}-{turn}", turn + 1
            self.asked[kind] += 1
            leave_s = draw.uniform(0.05, 2.0) if kind in LEAVES else None
            stream = await ask(self.port, body_of(kind, draw), request_id, leave_after_s=leave_s)
            if (why := unexpected(kind, stream)) is not None:
                self.unexpected.append(f"{request_id} ({kind}): {why}")
            await self.told(kind, stream)
            await asyncio.sleep(draw.expovariate(6))


def body_of(kind: str, draw: random.Random) -> Body:
    """The next body of a kind."""
    prompt = prompt_ids(draw.random().hex(), draw.choice((8, 64, 200)))
    match kind:
        case "completion":
            return tokens_of(prompt, draw.choice((2, 16, 48)))
        case "long output":
            return tokens_of(prompt[:64], 250)
        case "long prompt":
            return tokens_of(prompt_ids(draw.random().hex(), draw.randrange(500, 900)), 16)
        case "shared prefix":
            return tokens_of([*SHARED, *prompt[:32]], 24)
        case "json_schema":
            words = ", ".join(draw.choice(WORDS) for _ in range(8))
            schema = {"name": "answer", "schema": SCHEMA}
            return tokens_of(
                f"Which city do these words make you think of: {words}? As JSON: ", 48,
                ignore_eos=None,
                response_format={"type": "json_schema", "json_schema": schema},
            )  # fmt: skip
        case "disconnect":
            return tokens_of(prompt, 200)
        case "refused":
            return {**tokens_of(prompt, 8), "max_tokens": -1}
    raise ValueError(kind)


def unexpected(kind: str, stream: Stream) -> str | None:
    """What is wrong with an answer; None where it is as asked for."""
    if kind in FAILS:
        return None if stream.status == 400 else f"status {stream.status}, not 400"
    if kind in LEAVES and stream.left:
        return None
    if stream.is_whole:
        return None
    return stream.error or f"status {stream.status}, finish {stream.finish}"
