"""Closed-loop measurement of a real server on this machine, by a client of its own.

Starts `phasescope serve` on the default model, runs fixed workloads at several
concurrencies, interleaved over several rounds, and writes medians with their spread as
JSON and as a table. It measures phasescope against itself; comparison with peers needs
their servers interleaved in the same rounds.

    .venv/bin/python benchmarks/serving.py [--rounds 5] [--out benchmarks/results/serving.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64
CONCURRENCIES = (1, 4, 8, 16)
LONG_PROMPT_TOKENS = 1500


@dataclass
class Result:
    """One workload in one round; times in ms."""

    name: str
    round: int
    tokens_per_s: float
    ttft_p50_ms: float
    itl_p50_ms: float
    itl_p99_ms: float


@dataclass
class Stream:
    """Arrival times of one streamed completion, in seconds."""

    begin_s: float
    arrivals_s: list[float]


async def one(client: httpx.AsyncClient, prompt: list[int], output_tokens: int) -> Stream:
    body = {
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "logprobs": 0,  # so that each token has a chunk, whatever its text
    }
    stream = Stream(time.perf_counter(), [])
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                stream.arrivals_s.append(time.perf_counter())
    return stream


async def closed_loop(
    client: httpx.AsyncClient, name: str, number: int, concurrency: int, prompt_tokens: int,
    output_tokens: int,
) -> Result:  # fmt: skip
    """`concurrency` clients, two requests each, one after another."""

    async def user(index: int) -> list[Stream]:
        streams: list[Stream] = []
        for turn in range(2):
            seed = number * 1000 + index * 10 + turn
            prompt = [200 + (seed * 7919 + i * 104_729) % 40_000 for i in range(prompt_tokens)]
            streams.append(await one(client, prompt, output_tokens))
        return streams

    begin_s = time.perf_counter()
    done = await asyncio.gather(*(user(index) for index in range(concurrency)))
    seconds = time.perf_counter() - begin_s
    streams = [stream for streams in done for stream in streams]
    gaps = [b - a for s in streams for a, b in zip(s.arrivals_s, s.arrivals_s[1:], strict=False)]
    tokens = sum(len(stream.arrivals_s) for stream in streams)
    return Result(
        name=name,
        round=number,
        tokens_per_s=tokens / seconds,
        ttft_p50_ms=1000 * statistics.median(s.arrivals_s[0] - s.begin_s for s in streams),
        itl_p50_ms=1000 * statistics.median(gaps) if gaps else float("nan"),
        itl_p99_ms=1000 * sorted(gaps)[math.ceil(0.99 * (len(gaps) - 1))] if gaps else float("nan"),
    )


async def measure(url: str, rounds: int) -> list[Result]:
    results: list[Result] = []
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await closed_loop(client, "warm-up", 0, 2, PROMPT_TOKENS, 8)
        for number in range(1, rounds + 1):
            for concurrency in CONCURRENCIES:
                name = f"c{concurrency}"
                results.append(
                    await closed_loop(
                        client, name, number, concurrency, PROMPT_TOKENS, OUTPUT_TOKENS
                    )
                )
                print(f"round {number} {name}: {results[-1].tokens_per_s:.1f} tokens/s", flush=True)
            results.append(await closed_loop(client, "pf", number, 1, LONG_PROMPT_TOKENS, 2))
    return results


def table(results: list[Result]) -> str:
    """Medians over the rounds, with the range of tokens/s."""
    lines = ["| load | tokens/s (min to max) | TTFT p50 ms | ITL p50 ms | ITL p99 ms |"]
    lines.append("|---|---|---|---|---|")
    for name in dict.fromkeys(result.name for result in results):
        mine = [result for result in results if result.name == name]
        rates = [result.tokens_per_s for result in mine]
        cells = [
            statistics.median(values)
            for values in (
                [r.ttft_p50_ms for r in mine],
                [r.itl_p50_ms for r in mine],
                [r.itl_p99_ms for r in mine],
            )
        ]
        lines.append(
            f"| {name} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) | "
            + " | ".join(f"{cell:.0f}" for cell in cells)
            + " |"
        )
    return "\n".join(lines)


def machine() -> dict[str, object]:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return {"cpu": name, "cores": os.cpu_count(), "python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "serving.json"
    )
    args = parser.parse_args()
    url = f"http://127.0.0.1:{args.port}"
    command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(args.port)]
    server = subprocess.Popen(command)
    try:
        wait_ready(url, server)
        started = httpx.get(f"{url}/v1/models").json()["data"][0]
        results = asyncio.run(measure(url, args.rounds))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    about = {"machine": machine(), "server": started, "rounds": args.rounds}
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(
        json.dumps({**about, "results": [asdict(r) for r in results]}, indent=1) + "\n"
    )
    print(table(results))


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 300
    while time.monotonic() < deadline_s:
        if server.poll() is not None:
            raise SystemExit("the server ended before it was ready")
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit("the server was not ready in time")


if __name__ == "__main__":
    main()
