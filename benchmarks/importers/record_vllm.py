"""Records what a real vLLM says of itself, sound and with faults: its OTLP spans and scrapes of its
`/metrics`.

    python -m benchmarks.importers.record_vllm --out build/importers

It needs the environment of `python -m benchmarks.peers install vllm`. Each run writes
`NAME.otlp.jsonl`, `NAME.prom` and `NAME.phases.json`; `python -m benchmarks.importers.trim` makes
the test fixtures of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.importers.otlp_files import HOST, SpanFile
from benchmarks.importers.traffic import Phase, Traffic
from benchmarks.peers.layout import PeerError, default_root
from benchmarks.peers.recipes import recipes, setup_of
from lab.load.processes import ended, free_port

_SCRAPE_S, _READY_S, _LAST_SPANS_S = 1.0, 600, 7.0
_SOUND = Phase("", 60, 0.4, prompt=420, shared=400)


@dataclass(frozen=True)
class Run:
    """One start of the engine, with its flags and what it then gets."""

    name: str
    flags: tuple[str, ...]
    phases: tuple[Phase, ...]


RUNS = (
    Run(
        "wide",
        ("--max-num-seqs", "64", "--max-num-batched-tokens", "2048"),
        (
            Phase("warm-up", 10, 0.4, prompt=420, shared=400),
            _SOUND,
            Phase("long_prompts", 60, 0.4, prompt=420, shared=400, long_rate=0.15),
            _SOUND,
            Phase("prefix_cache_cold", 50, 0.4, prompt=420, shared=0),
        ),
    ),
    Run(
        "slots",
        ("--max-num-seqs", "8", "--max-num-batched-tokens", "2048"),
        (
            Phase("warm-up", 10, 0.4, prompt=420, shared=400),
            _SOUND,
            Phase("queue_overload", 12, 6.0, prompt=420, shared=400),
        ),
    ),
    Run(
        "blocks",
        ("--max-num-seqs", "32", "--num-gpu-blocks-override", "18", "--max-num-batched-tokens",
         "2048"),
        (
            Phase("warm-up", 10, 0.4),
            Phase("", 60, 0.4),
            Phase("kv_thrash", 25, 0.8, output=300),
        ),
    ),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--root", type=Path, default=default_root(), help="of the peers")
    parser.add_argument("--only", nargs="+", choices=[run.name for run in RUNS])
    parser.add_argument("--seed", type=int, default=34, help="of the traffic (default %(default)s)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        for run in RUNS:
            if not args.only or run.name in args.only:
                _record(run, args.root, args.out, args.seed)
    except PeerError as error:
        print(f"record_vllm: {error}", file=sys.stderr)
        return 1
    return 0


def _record(run: Run, root: Path, out: Path, seed: int) -> None:
    setup = setup_of(root, 0, "auto", "")
    (vllm,) = (one for one in recipes(setup) if one.name == "vllm")
    if not vllm.needs.exists():
        raise PeerError("vllm is not installed: python -m benchmarks.peers install vllm")
    port = free_port()
    spans = out / f"{run.name}.otlp.jsonl"
    spans.unlink(missing_ok=True)
    with SpanFile(spans) as receiver, (out / f"{run.name}.log").open("wb") as log:
        start = vllm.start(port, None)
        command = [flag for flag in start.command if flag != "--no-enable-prefix-caching"]
        command += ["--otlp-traces-endpoint", receiver.endpoint, *run.flags]
        environment = {**os.environ, **start.environment}
        engine = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            asyncio.run(_drive(run, f"http://{HOST}:{port}", engine, out, seed))
        finally:
            ended(engine)


async def _drive(run: Run, url: str, engine: subprocess.Popen[bytes], out: Path, seed: int) -> None:
    await _until_ready(url, engine, out / f"{run.name}.log")
    body: dict[str, object] = {"model": "model", "ignore_eos": True, "temperature": 0.7}
    traffic = Traffic(url, "/v1/completions", seed, body)
    scraping = asyncio.create_task(_scrape(url, out / f"{run.name}.prom"))
    phases: list[dict[str, object]] = []
    for phase in run.phases:
        print(f"{run.name}: {phase.label or 'sound'} for {phase.seconds:.0f} s", flush=True)
        begun_s = time.time()
        await traffic.run(phase)
        phases.append({"label": phase.label, "begin_s": begun_s, "end_s": time.time()})
    await asyncio.sleep(_LAST_SPANS_S)
    scraping.cancel()
    await traffic.close()
    (out / f"{run.name}.phases.json").write_text(json.dumps(phases, indent=1))
    print(f"{run.name}: {len(traffic.answers)} answers, {traffic.failed} failed", flush=True)


async def _until_ready(url: str, engine: subprocess.Popen[bytes], log: Path) -> None:
    begun_s = time.monotonic()
    async with httpx.AsyncClient(timeout=5) as client:
        while time.monotonic() - begun_s < _READY_S:
            if engine.poll() is not None:
                raise PeerError(f"vllm ended with status {engine.returncode}: see {log}")
            try:
                if (await client.get(f"{url}/health")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(2)
            print(f"  {time.monotonic() - begun_s:4.0f} s  vllm starts", flush=True)
    raise PeerError(f"vllm was not ready after {_READY_S} s: see {log}")


async def _scrape(url: str, path: Path) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        with path.open("w") as file:
            while True:
                try:
                    text = (await client.get(f"{url}/metrics")).text
                    file.write(f"# scrape {time.time():.3f}\n{text}\n")
                except httpx.HTTPError as error:
                    print(f"  a scrape failed: {error!r}", file=sys.stderr)
                await asyncio.sleep(_SCRAPE_S)


if __name__ == "__main__":
    sys.exit(main())
