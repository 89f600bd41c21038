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
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contract.client import Exchange, now_ns
from benchmarks.contract.common import Server, percentile
from benchmarks.gpu.counters import about
from benchmarks.gpu.servers.clients import Answer, ask, gaps_ms, in_background, prompt_of, stream
from benchmarks.machine import spread

RESULTS = Path(__file__).resolve().parents[2] / "results" / "gpu_offload.json"
KEPT, OFFLOADED, COMPUTED = "on the GPU", "in host memory", "computed again"
PROMPTS, OUTPUT_TOKENS = 16, 24
COUNTERS = ("phasescope_prefix_", "phasescope_kv_blocks_copied")
REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run: tokens of each prompt, and memory for all prompts, for a quarter of them,
    and of the host."""

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
    answers: list[Answer] = []
    most = sizes.max_model_tokens - 200
    async with in_background(stream(server.port, "stream", 64, most, answers)):
        alone_ns = now_ns()
        await asyncio.sleep(1.0)
        begin_ns = now_ns()
        await one_round(server.port, sizes)
        end_ns = now_ns()
    alone_ms = gaps_ms(answers, alone_ns, begin_ns)
    beside_ms = gaps_ms(answers, begin_ns, end_ns)
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
