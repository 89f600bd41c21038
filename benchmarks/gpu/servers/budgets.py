"""Is the default step budget the best one on a GPU? Streams beside long prompts, over HTTP.

    python -m benchmarks.gpu.servers.budgets [--model dummy:llama-8b] [--device cuda]
        [--budgets 512,2048,8192] [--passes 2] [--out FILE]

Each server (the default, and one for each fixed budget) serves 32 streams, and a prompt of 4,000
tokens that no other begins like, every 400 ms, whether the last was answered or not. Servers run
one after the other, in turned order from pass to pass. Of each are told the gaps of the streams,
the time to the first token of the long prompts, and the tokens of the streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contract.client import now_ns
from benchmarks.contract.common import Server, percentile
from benchmarks.gpu.counters import about
from benchmarks.gpu.servers.clients import Answer, ask, gaps_ms, in_background, prompt_of, stream

RESULTS = Path(__file__).resolve().parents[2] / "results" / "gpu_budgets.json"
DEFAULT = "auto"


@dataclass(frozen=True, slots=True)
class Load:
    """Streams of `stream_tokens` after `stream_prompt`; a prompt of `prompt_tokens` each
    `interval_s`, from `warm_up_s` on, for `measured_s`."""

    memory: str
    streams: int
    stream_prompt: int
    stream_tokens: int
    prompt_tokens: int
    interval_s: float
    warm_up_s: float
    measured_s: float


LOADS = {
    "cuda": Load("16GiB", 32, 256, 1_500, 4_000, 0.4, 4.0, 10.0),
    "cpu": Load("256MiB", 4, 16, 200, 300, 0.5, 1.0, 3.0),
}


async def prompts(port: int, load: Load) -> list[Answer]:
    """The long ones in open loop, until the last has its first token or a minute is over."""
    tasks: list[asyncio.Task[None]] = []
    answers: list[Answer] = []
    for number in range(int(load.measured_s / load.interval_s)):
        answers.append(answer := Answer(now_ns()))
        prompt = prompt_of(f"long {number}", load.prompt_tokens)
        tasks.append(asyncio.create_task(ask(port, prompt, 2, answer)))
        await asyncio.sleep(load.interval_s)
    async with asyncio.timeout(60.0):
        await asyncio.gather(*tasks)
    return answers


async def one_server(model: str, device: str, budget: str) -> dict[str, Any]:
    load = LOADS[device]
    flags = ["--model", model, "--device", device, "--kv-memory", load.memory]
    flags += ["--max-model-len", "8192" if device == "cuda" else "2048"]
    flags += [] if budget == DEFAULT else ["--max-batched-tokens", budget]
    async with Server(*flags) as server:
        answers: list[Answer] = []
        streams = [
            stream(server.port, f"s {number}", load.stream_prompt, load.stream_tokens, answers)
            for number in range(load.streams)
        ]
        async with in_background(*streams):
            await asyncio.sleep(load.warm_up_s)
            begin_ns = now_ns()
            long = await prompts(server.port, load)
            end_ns = now_ns()
        flagged = list(server.flags)
    return {"budget": budget, "flags": flagged, **figures(answers, long, begin_ns, end_ns)}


def figures(
    streams: list[Answer], long: list[Answer], begin_ns: int, end_ns: int
) -> dict[str, float | None]:
    """The latencies of what came between `begin_ns` and `end_ns`, in ms."""
    gaps = gaps_ms(streams, begin_ns, end_ns)
    ttfts = [one.ttft_ms for one in long]
    return {
        "itl_p50_ms": percentile(gaps, 0.5),
        "itl_p99_ms": percentile(gaps, 0.99),
        "itl_max_ms": max(gaps, default=None),
        "long_ttft_p50_ms": percentile(ttfts, 0.5),
        "long_ttft_p99_ms": percentile(ttfts, 0.99),
        "long_ttft_max_ms": max(ttfts, default=None),
        "stream_tokens_per_s": len(gaps) / (end_ns - begin_ns) * 1e9,
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    budgets = [DEFAULT, *args.budgets.split(",")]
    runs: list[dict[str, Any]] = []
    for number in range(args.passes):
        for budget in budgets if number % 2 == 0 else reversed(budgets):
            runs.append(await one_server(args.model, args.device, budget))
            print(json.dumps(runs[-1]), flush=True)
            found = {**about(args.device), "model": args.model, "runs": runs}
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="dummy:llama-8b")
    parser.add_argument("--device", default="cuda", choices=sorted(LOADS))
    parser.add_argument("--budgets", default="512,2048,8192", help="fixed ones, comma-separated")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asyncio.run(measure(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
