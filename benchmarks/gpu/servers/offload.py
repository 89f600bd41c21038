"""Prefix blocks that come back from host memory to a GPU: are they right, and are they worth it?

    python -m benchmarks.gpu.servers.offload [--model dummy:llama-1b] [--device cuda] [--rounds 3]
        [--out FILE]

Three servers of the same model answer the same long prompts in turn, again and again. The first
keeps all of them in the GPU's memory. The second has room for a quarter, and host memory
(`--kv-offload`) for the rest. The third has room for a quarter, and computes the rest again.
From the second round on, the texts of the first two must be the same, token for token: the same
tokens are computed, on the same blocks. Beside the prompts a stream goes on, whose gaps say what
the copies cost others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contract.client import COMPLETIONS, Exchange, completion, now_ns
from benchmarks.contract.common import Server, percentile
from benchmarks.gpu.counters import about
from benchmarks.machine import spread

RESULTS = Path(__file__).resolve().parents[2] / "results" / "gpu_offload.json"
KEPT, OFFLOADED, COMPUTED = "on the GPU", "in host memory", "computed again"
PROMPTS, OUTPUT_TOKENS = 16, 24
COUNTERS = ("phasescope_prefix_", "phasescope_kv_blocks_copied")
REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a run: tokens of each prompt, and memory for all prompts, for a quarter of them, and of
    the host."""

    prompt_tokens: int
    max_model_tokens: int
    whole: str
    quarter: str
    host: str


# llama-1b in bfloat16 has 32 KiB a token; the tiny shape of a CPU is there to show that it runs
SIZES = {
    "cuda": Sizes(4000, 8_192, "8GiB", "768MiB", "8GiB"),
    "cpu": Sizes(400, 2_048, "64MiB", "1MiB", "64MiB"),
}


@dataclass
class Answer:
    """One prompt's text, as token ids, with the times of its pieces."""

    sent_ns: int
    text: list[int] = field(default_factory=list)
    at_ns: list[int] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return (self.at_ns[0] - self.sent_ns) / 1e6

    @property
    def gaps_ms(self) -> list[float]:
        pairs = zip(self.at_ns, self.at_ns[1:], strict=False)
        return [(later - earlier) / 1e6 for earlier, later in pairs]


def prompt_of(name: str, tokens: int) -> list[int]:
    """Token ids that no other name begins with, of any dummy vocabulary."""
    draw = random.Random(name)
    return [draw.randrange(5, 500) for _ in range(tokens)]


async def ask(port: int, prompt: list[int], tokens: int, answer: Answer) -> None:
    """Fill `answer` as the stream comes. Raises ValueError for an error of the server."""
    body = completion(prompt, tokens, return_token_ids=True)
    body.pop("logprobs")  # for them the GPU would wait for the host
    exchange = await Exchange.begin(port, "POST", COMPLETIONS, body)
    try:
        if (status := await exchange.head()) != 200:
            raise ValueError(f"the server answered {status}")
        async for event in exchange.events():
            if event == b"[DONE]":
                return
            chunk = json.loads(event)
            if "error" in chunk:
                raise ValueError(chunk["error"])
            for choice in chunk["choices"]:
                if choice.get("token_ids"):
                    answer.text += choice["token_ids"]
                    answer.at_ns.append(now_ns())
    finally:
        exchange.leave()


async def counters(port: int) -> dict[str, float]:
    """How much came from the caches, since the start."""
    exchange = await Exchange.begin(port, "GET", "/metrics")
    try:
        await exchange.head()
        lines = b"".join([piece async for piece in exchange.pieces()]).decode().splitlines()
    finally:
        exchange.leave()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith(COUNTERS)]
    return {name: float(value) for name, value in pairs}


async def one_round(port: int, sizes: Sizes) -> list[Answer]:
    """All prompts, one after the other."""
    found: list[Answer] = []
    for number in range(PROMPTS):
        answer = Answer(now_ns())
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            await ask(
                port, prompt_of(f"prompt {number}", sizes.prompt_tokens), OUTPUT_TOKENS, answer
            )
        if len(answer.text) != OUTPUT_TOKENS:
            raise ValueError(f"{len(answer.text)} tokens instead of {OUTPUT_TOKENS}")
        found.append(answer)
    return found


async def rounds_of(server: Server, sizes: Sizes, rounds: int) -> list[list[Answer]]:
    """The first round, in which nothing is cached, and `rounds` more."""
    found = []
    for number in range(rounds + 1):
        found.append(await one_round(server.port, sizes))
        ttft = percentile([one.ttft_ms for one in found[-1]], 0.5)
        print(f"  round {number}: TTFT p50 {ttft:.1f} ms", flush=True)
    return found


async def beside_a_stream(server: Server, sizes: Sizes) -> dict[str, float | None]:
    """Gaps of a stream while a round of prompts is answered, and before."""
    stream = Answer(now_ns())
    most = sizes.max_model_tokens - 200
    task = asyncio.create_task(ask(server.port, prompt_of("stream", 64), most, stream))
    try:
        await asyncio.sleep(1.0)
        alone_ms = stream.gaps_ms
        begin_ns = now_ns()
        await one_round(server.port, sizes)
        end_ns = now_ns()
        if task.done():
            raise ValueError("the stream ended before the prompts did")
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    ends = zip(stream.at_ns[1:], stream.gaps_ms, strict=True)
    beside_ms = [gap for at_ns, gap in ends if begin_ns <= at_ns < end_ns]
    return {
        "alone_itl_p50_ms": percentile(alone_ms, 0.5),
        "beside_itl_p50_ms": percentile(beside_ms, 0.5),
        "beside_itl_p99_ms": percentile(beside_ms, 0.99),
        "round_s": (end_ns - begin_ns) / 1e9,
    }


async def one_server(
    model: str, device: str, sizes: Sizes, rounds: int, memory: list[str]
) -> tuple[list[list[Answer]], dict[str, Any]]:
    flags = ["--model", model, "--device", device, *memory]
    async with Server(*flags, "--max-model-len", str(sizes.max_model_tokens)) as server:
        answers = await rounds_of(server, sizes, rounds)
        await server.until_empty()
        counted = await counters(server.port)
        beside = await beside_a_stream(server, sizes)
        flagged = list(server.flags)
    warm = [one for each in answers[1:] for one in each]
    return answers, {
        "flags": flagged,
        "cold_ttft_ms": spread([one.ttft_ms for one in answers[0]]),
        "warm_ttft_ms": spread([one.ttft_ms for one in warm]),
        "stream": beside,
        "counted": counted,
    }


def equal_texts(ours: list[list[Answer]], theirs: list[list[Answer]]) -> dict[str, int]:
    """Over all rounds but the first."""
    pairs = [
        (one.text, other.text)
        for both in zip(ours[1:], theirs[1:], strict=True)
        for one, other in zip(*both, strict=True)
    ]
    return {"texts": len(pairs), "equal": sum(one == other for one, other in pairs)}


async def measure(model: str, device: str, rounds: int) -> dict[str, Any]:
    sizes = SIZES[device]
    ways = {
        KEPT: ["--kv-memory", sizes.whole],
        OFFLOADED: ["--kv-memory", sizes.quarter, "--kv-offload", sizes.host],
        COMPUTED: ["--kv-memory", sizes.quarter],
    }
    answers: dict[str, list[list[Answer]]] = {}
    found: dict[str, Any] = {}
    for way, memory in ways.items():
        print(way, flush=True)
        answers[way], found[way] = await one_server(model, device, sizes, rounds, memory)
    return {
        "model": model,
        "prompts": PROMPTS,
        "prompt_tokens": sizes.prompt_tokens,
        "ways": found,
        "from_host_memory_beside_kept": equal_texts(answers[OFFLOADED], answers[KEPT]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="dummy:llama-1b")
    parser.add_argument("--device", default="cuda", choices=sorted(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = asyncio.run(measure(args.model, args.device, args.rounds))
    args.out.write_text(json.dumps({**about(args.device), **found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    texts = found["from_host_memory_beside_kept"]
    return 0 if texts["equal"] == texts["texts"] else 1


if __name__ == "__main__":
    sys.exit(main())
