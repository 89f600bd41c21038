"""This checkout beside another one: what a change cost, or did not.

Two real servers on the default model run at once, one from each checkout; the one whose turn it
is has the machine, the other is idle. Turns are ABBA, so that drift falls on both alike.

    c1, c8   closed loops of 1 and 8 clients, 64 tokens in and 64 out
    mix      six steady clients (64 in, 128 out) and a prompt of 1,500 tokens every 4 s

For each figure stated: the median of the pairs' ratios (this checkout by the other), the range of
the pairs, and the same of this checkout against itself (`--control`), which is the noise.

    git worktree add ../before COMMIT
    .venv/bin/python -m benchmarks.checkouts ../before [--pairs 6] [--control]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import machine
from benchmarks.serving import figures, run_whole
from benchmarks.starter import serving
from lab.load.spec import BenchSpec, ClassSpec, Fixed, Interval, Users

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "checkouts.json"
FLAGS = ("--no-prefix-cache", "--kv-memory", "1GiB")
STEADY, INJECTED = "steady", "injected"
SHORT = Fixed(64, 64)
LOADS: dict[str, tuple[tuple[ClassSpec, ...], int | None, float | None, int]] = {
    # classes, requests that count, seconds, requests before
    "c1": ((ClassSpec(name=STEADY, lengths=SHORT, arrivals=Users(1)),), 3, None, 1),
    "c8": ((ClassSpec(name=STEADY, lengths=SHORT, arrivals=Users(8)),), 24, None, 8),
    "mix": (
        (
            ClassSpec(name=STEADY, lengths=Fixed(64, 128), arrivals=Users(6)),
            ClassSpec(name=INJECTED, lengths=Fixed(1500, 8), arrivals=Interval(4.0)),
        ),
        None, 20.0, 0,
    ),
}  # fmt: skip
FIGURES = ("tokens_per_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms")


def measure(url: str, load: str, salt: int) -> dict[str, float]:
    """One load on one server. SystemExit when a request fails."""
    classes, requests, seconds, before = LOADS[load]
    spec = BenchSpec(
        url=url, classes=classes, requests=requests, duration_s=seconds, warmup_requests=before,
        salt=salt, extra_body={"logprobs": 0},
    )  # fmt: skip
    found = run_whole(spec, load).classes
    return figures(next(one for one in found if one.name == STEADY))


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def compared(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The comparison for each load and figure: this checkout by the other, pair by pair."""
    found = []
    for load in LOADS:
        mine = [cell for cell in cells if cell["load"] == load]
        for figure in FIGURES:
            ratios = [cell["this"][figure] / cell["other"][figure] for cell in mine]
            if ratios:
                found.append(
                    {
                        "load": load, "figure": figure, "pairs": len(ratios),
                        "this": round(median(cell["this"][figure] for cell in mine), 2),
                        "other": round(median(cell["other"][figure] for cell in mine), 2),
                        "ratio": round(median(ratios), 4),
                        "least": round(min(ratios), 4), "most": round(max(ratios), 4),
                    }
                )  # fmt: skip
    return found


def run(other: Path, pairs: int, loads: list[str]) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = []
    with contextlib.ExitStack() as running:
        urls = {
            "other": running.enter_context(serving(*FLAGS, checkout=other)).url,
            "this": running.enter_context(serving(*FLAGS, checkout=REPOSITORY)).url,
        }
        for number in range(pairs):
            order = ("other", "this") if number % 2 == 0 else ("this", "other")
            for load in loads:
                cell: dict[str, Any] = {"load": load, "pair": number + 1}
                for name in order:  # the same prompts for both, new ones for each pair
                    cell[name] = measure(urls[name], load, salt=1000 * (number + 1) + len(cells))
                cells.append(cell)
                rates = ", ".join(f"{name} {cell[name]['tokens_per_s']:.1f}" for name in order)
                print(f"{number + 1} of {pairs}, {load}: tokens/s {rates}", flush=True)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument(
        "--pairs", type=int, default=6, help="even, so that each goes first as often"
    )
    parser.add_argument("--loads", default=",".join(LOADS), help="comma-separated")
    parser.add_argument("--control", action="store_true", help="this checkout against itself, too")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    other, loads = args.other.resolve(), args.loads.split(",")
    if unknown := set(loads) - set(LOADS):
        parser.error(f"no load {', '.join(unknown)}: choose from {', '.join(LOADS)}")
    found: dict[str, Any] = {
        "machine": machine(),
        "measured_at": time.strftime("%Y-%m-%d", time.gmtime()),
        "flags": list(FLAGS),
        "this": commit_of(REPOSITORY),
        "other": commit_of(other),
        "results": compared(run(other, args.pairs, loads)),
    }
    if args.control:
        found["control"] = compared(run(REPOSITORY, args.pairs, loads))
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in found["results"]:
        print(
            f"{row['load']:4} {row['figure']:13} {row['other']:9.2f} -> {row['this']:9.2f}  "
            f"x{row['ratio']:.3f} ({row['least']:.3f} to {row['most']:.3f})"
        )


if __name__ == "__main__":
    main()
