"""`phasescope profile` of a server on a GPU: does it show the GPU's kernels, and nothing of a text?

    python -m benchmarks.gpu.servers.profiled [--model dummy:llama-1b] [--device cuda] [--out FILE]

A server decodes eight streams while the command records 40 steps, and records 40 more in which
prompts come too. Of both traces is told: how many steps and kernels there are, how much of the
steps' time kernels take, the kernels that take most, and what the streams' gaps were meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.contract.client import now_ns
from benchmarks.contract.common import Server, percentile
from benchmarks.gpu.counters import about
from benchmarks.gpu.servers.clients import Answer, ask, gaps_ms, in_background, prompt_of, stream

RESULTS = Path(__file__).resolve().parents[2] / "results" / "gpu_profile.json"
STREAMS, PROMPT_TOKENS, STREAM_TOKENS = 8, 64, 1_900
STEPS, KERNELS_TOLD = 40, 6
MARK = "a prompt's own words, 7351"  # in every prompt that is text


async def profile(port: int, path: Path) -> None:
    """Run the command, which writes `path`. Raises ValueError when it fails, with its words."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service.cli.main", "profile", f"http://127.0.0.1:{port}",
        "--steps", str(STEPS), "-o", str(path),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    said = (await process.stdout.read()).decode()
    if await process.wait() != 0:
        raise ValueError(said)


def told(trace: dict[str, Any], device: str) -> dict[str, Any]:
    """What a trace shows. On a CPU operators stand for kernels."""
    events = [one for one in trace["traceEvents"] if one.get("ph") == "X"]
    category = "kernel" if device == "cuda" else "cpu_op"
    kernels = [one for one in events if one.get("cat") == category]
    steps = {
        int(one["name"].split()[1])
        for one in events
        if one["name"].startswith("step ") and one["name"].endswith(" collect")
    }
    by_name: Counter[str] = Counter()
    for one in kernels:
        by_name[one["name"][:60]] += one["dur"]
    begin = min((one["ts"] for one in kernels), default=0)
    end = max((one["ts"] + one["dur"] for one in kernels), default=0)
    busy_us = sum(by_name.values())
    return {
        "metadata": trace.get("phasescope"),
        "steps": len(steps),
        "kernels": len(kernels),
        "copies": sum(one.get("cat") == "gpu_memcpy" for one in events),
        "busy_share": busy_us / (end - begin) if kernels else 0.0,
        "most": {name: round(us / busy_us, 3) for name, us in by_name.most_common(KERNELS_TOLD)},
        "holds_text": MARK in json.dumps(trace) or "token_ids" in json.dumps(trace),
    }


async def prompts_meanwhile(port: int) -> None:
    """Prompts one after the other, as text and as ids, until cancelled."""
    number = 0
    while True:
        number += 1
        prompt = f"{number} {MARK}" if number % 2 else prompt_of(f"more {number}", 500)
        await ask(port, prompt, 4, Answer(now_ns()))


async def measure(model: str, device: str) -> dict[str, Any]:
    memory = "4GiB" if device == "cuda" else "64MiB"
    flags = ["--model", model, "--device", device, "--kv-memory", memory, "--max-model-len", "2048"]
    async with Server(*flags) as server:
        answers: list[Answer] = []
        streams = [
            stream(server.port, f"stream {number}", PROMPT_TOKENS, STREAM_TOKENS, answers)
            for number in range(STREAMS)
        ]
        async with in_background(*streams):
            await asyncio.sleep(1.0)
            decodes = await one_profile(server.port, device, answers)
            async with in_background(prompts_meanwhile(server.port)):
                await asyncio.sleep(0.2)
                mixed = await one_profile(server.port, device, answers)
        flagged = list(server.flags)
    return {"flags": flagged, "decodes": decodes, "decodes and prompts": mixed}


async def one_profile(port: int, device: str, answers: list[Answer]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        begin_ns = now_ns()
        await profile(port, path)
        end_ns = now_ns()
        trace = json.loads(gzip.decompress(path.read_bytes()))
        size = path.stat().st_size
    gaps = gaps_ms(answers, begin_ns, end_ns)
    return {
        **told(trace, device),
        "file_bytes": size,
        "took_s": (end_ns - begin_ns) / 1e9,
        "gaps_meanwhile_ms": {"p50": percentile(gaps, 0.5), "max": max(gaps, default=None)},
    }


def is_right(one: dict[str, Any]) -> bool:
    return one["steps"] == STEPS and one["kernels"] > 0 and not one["holds_text"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="dummy:llama-1b")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = asyncio.run(measure(args.model, args.device))
    args.out.write_text(json.dumps({**about(args.device), **found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0 if all(is_right(found[name]) for name in ("decodes", "decodes and prompts")) else 1


if __name__ == "__main__":
    sys.exit(main())
