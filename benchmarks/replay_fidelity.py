"""How well a replay foretells a run that its cost was not fitted to.

One server learns: Poisson arrivals of one mix of lengths, from which the cost of steps is fitted.
Others are then loaded with another mix at 0.6, 0.8 and 0.95 of what that mix was measured to
take at most. Each journal is decided again exactly (mode A) and replayed by the learnt cost with
the noise drawn (mode B); quantiles of what it foretells, over a few seeds of the noise, stand
beside those that were recorded.

    .venv/bin/python -m benchmarks.replay_fidelity [--seconds 180] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.contract.client import ask, completion, now_ns, open_loop, prompt_ids
from benchmarks.contract.common import Figure, Server, at_least, at_most, equal, say, ticking
from benchmarks.machine import machine
from dashboards.source import download
from diagnosis.outcomes import Outcomes
from diagnosis.whatif import NoiseKind, ReplayReport, replay_journal
from telemetry.clock import MonotonicClock
from telemetry.journal_reader import open_journal

RESULTS = Path(__file__).parent / "results" / "replay_fidelity.json"
FLAGS = ("--max-num-seqs", "16", "--max-batched-tokens", "256", "--queue-limit", "2048",
         "--journal-memory", "256MiB")  # fmt: skip
NOISE_SEEDS = 5
CAPACITY_USERS = 24
TRAIN_LOAD = 0.8
# measure: largest error of p50 and p99 up to a load of 0.8
LIMITS = {"tpot": (0.02, 0.05), "e2e": (0.03, 0.07), "ttft": (0.05, 0.10)}
HIGH_LOAD, HIGH_TTFT = 0.95, 0.15
LOADS = (0.6, 0.8, HIGH_LOAD)
LEAST_SPEED = 200.0

Mix = Callable[[random.Random], tuple[int, int]]


def learnt_mix(draw: random.Random) -> tuple[int, int]:
    """Prompt and output tokens: anything, evenly."""
    return draw.randint(8, 320), draw.randint(4, 64)


def tested_mix(draw: random.Random) -> tuple[int, int]:
    """Mostly short prompts with longer outputs; one in eight is a document with a short answer."""
    if draw.random() < 0.125:
        return draw.randint(350, 600), draw.randint(8, 24)
    return min(300, 12 + int(draw.expovariate(1 / 50))), draw.randint(16, 80)


async def capacity_per_s(mix: Mix, seconds: float) -> float:
    """Requests a second when there are always more than fit."""
    draw, done = random.Random(11), 0
    async with Server(*FLAGS) as server:
        half_ns = now_ns() + int(seconds * 0.25e9)
        end_ns = now_ns() + int(seconds * 1e9)

        async def user() -> None:
            nonlocal done
            while now_ns() < end_ns:
                prompt, output = mix(draw)
                await ask(server.port, completion(prompt_ids(draw.random().hex(), prompt), output))
                done += half_ns < now_ns() < end_ns

        async with ticking("capacity", lambda: f"{done} requests"):
            await asyncio.gather(*(user() for _ in range(CAPACITY_USERS)))
    return done / (0.75 * seconds)


async def recorded(mix: Mix, rate_per_s: float, seconds: float, seed: int, path: Path) -> None:
    """A server under Poisson arrivals; its journal."""
    draw = random.Random(seed)

    async with Server(*FLAGS) as server:

        def start(number: int) -> asyncio.Task[Any]:
            prompt, output = mix(draw)
            ids = prompt_ids(f"{seed}-{number}", prompt)
            return asyncio.create_task(ask(server.port, completion(ids, output)))

        async with ticking(f"{rate_per_s:.2f} requests/s"):
            tasks = await open_loop(rate_per_s, seconds, seed, start)
            await asyncio.gather(*tasks)
        await server.until_empty()
        await asyncio.sleep(1.0)  # the last facts are folded
        await asyncio.to_thread(download, f"http://127.0.0.1:{server.port}", path)


def foretold(path: Path, learnt: Path, seeds: int) -> tuple[ReplayReport, dict[str, Any]]:
    """A report, and each quantile beside the median of those foretold."""
    clock = MonotonicClock()
    reports = []
    for seed in range(seeds):
        say(f"  replaying {path.stem}, noise {seed + 1} of {seeds}")
        report, _ = replay_journal(
            open_journal(path), clock, (), open_journal(learnt), NoiseKind.DRAWN, seed
        )
        reports.append(report)
    rows: dict[str, Any] = {}
    for measure in LIMITS:
        for quantile in ("p50_ms", "p99_ms"):
            was = _quantile(reports[0].recorded, measure, quantile)
            each = [_quantile(report.replayed, measure, quantile) for report in reports]
            found = statistics.median(each)
            rows[f"{measure} {quantile}"] = {
                "recorded": was,
                "replayed": found,
                "error": found / was - 1,
                "spread": [min(each), max(each)],
            }
    return reports[0], rows


def _quantile(outcomes: Outcomes, measure: str, quantile: str) -> float:
    return float(getattr(outcomes.classes["chat"].latency[measure], quantile))


def figures(loads: dict[float, dict[str, Any]]) -> list[Figure]:
    found: list[Figure] = []
    for load, one in loads.items():
        rows = one["quantiles"]
        for measure, limits in LIMITS.items():
            for quantile, limit in zip(("p50_ms", "p99_ms"), limits, strict=True):
                if load == HIGH_LOAD:
                    if measure != "ttft":
                        continue
                    limit = HIGH_TTFT
                error = abs(rows[f"{measure} {quantile}"]["error"])
                name = f"load {load}: {measure} {quantile.removesuffix('_ms')} error"
                found.append(at_most(name, error, limit))
        found.append(equal(f"load {load}: decisions not as recorded", one["differences"], 0))
        found.append(at_least(f"load {load}: times real time", one["speed"], LEAST_SPEED))
    return found


def markdown(loads: dict[float, dict[str, Any]]) -> str:
    lines = [
        "| load | requests | decisions | " + " | ".join(
            f"{measure.upper()} {q}" for measure in LIMITS for q in ("p50", "p99")
        ) + " | x real time |",
        "|---" * (4 + 2 * len(LIMITS)) + "|",
    ]  # fmt: skip
    for load, one in loads.items():
        cells = [
            f"{row['recorded']:.1f} / {row['replayed']:.1f} ({100 * row['error']:+.1f} %)"
            for row in one["quantiles"].values()
        ]
        lines.append(
            f"| {load} | {one['requests']} | {one['decisions']} | "
            + " | ".join(cells)
            + f" | {one['speed']:.0f} |"
        )
    return "\n".join(lines) + "\n"


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        learnt = Path(folder) / "learnt.journal"
        at_most_per_s = await capacity_per_s(learnt_mix, args.seconds / 6)
        say(f"the learnt mix: at most {at_most_per_s:.2f} requests/s")
        await recorded(learnt_mix, TRAIN_LOAD * at_most_per_s, args.seconds, 1, learnt)
        at_most_per_s = await capacity_per_s(tested_mix, args.seconds / 6)
        say(f"the tested mix: at most {at_most_per_s:.2f} requests/s")
        loads: dict[float, dict[str, Any]] = {}
        for number, load in enumerate(LOADS):
            path = Path(folder) / f"load-{load}.journal"
            await recorded(tested_mix, load * at_most_per_s, args.seconds, 100 + number, path)
            report, rows = foretold(path, learnt, args.noise_seeds)
            identities = report.identities or []
            loads[load] = {
                "rate_per_s": load * at_most_per_s,
                "requests": report.recorded.classes["chat"].requests,
                "decisions": sum(one.decisions for one in identities),
                "differences": sum(not one.holds for one in identities) if identities else None,
                "speed": report.speed,
                "fit_mean_error": report.cost.mean_error,
                "quantiles": rows,
            }
            say(json.dumps(loads[load]["quantiles"]))
            if args.keep is not None:
                args.keep.mkdir(parents=True, exist_ok=True)
                for kept in (learnt, path):
                    (args.keep / kept.name).write_bytes(kept.read_bytes())
    return {"at_most_per_s": at_most_per_s, "loads": loads}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180.0, help="of each recorded load")
    parser.add_argument("--noise-seeds", type=int, default=NOISE_SEEDS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the journals here")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = asyncio.run(measure(args))
    made = figures(found["loads"])
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": machine(),
        "server": list(FLAGS),
        "seconds": args.seconds,
        **found,
        "figures": [asdict(figure) for figure in made],
    }
    args.out.write_text(json.dumps(about, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(markdown(found["loads"]))
    say(markdown(found["loads"]))
    for figure in made:
        say(figure.line())
    return 0 if all(figure.holds for figure in made) else 1


if __name__ == "__main__":
    sys.exit(main())
