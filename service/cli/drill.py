"""`phasescope drill`: run the production scheduler through simulated scenarios."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from service.config import ConfigError
from telemetry.clock import MonotonicClock

if TYPE_CHECKING:  # the simulator is imported when it is run: every command reads this file
    from service.sim.world import Report, Scenario

_PROGRESS_NS = 2_000_000_000


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "drill", help="run the scheduler through simulated scenarios and check its invariants"
    )
    parser.add_argument(
        "--sim",
        required=True,
        metavar="SCENARIO",
        help="the name of a scenario (a wrong one is answered with the list), or a trace file of "
        "JSON lines (at_ms, prompt_tokens, max_tokens, tenant, priority)",
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--count", type=int, default=1, help="how many seeds (default 1)")
    parser.add_argument("--journal", type=Path, help="write the facts of the last run here")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.sim.invariants import InvariantViolated
    from service.sim.world import World
    from telemetry.journal import write_journal

    if args.count < 1:
        raise ConfigError("--count must be at least 1")
    clock = MonotonicClock()
    begun_ns = told_ns = clock.now_ns()
    totals: Counter[str] = Counter()
    report: Report | None = None
    for seed in range(args.seed, args.seed + args.count):
        try:
            report = World(_scenario(args.sim, seed)).run()
        except (InvariantViolated, AssertionError) as error:
            print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
            print(f"reproduce: phasescope drill --sim {args.sim} --seed {seed}", file=sys.stderr)
            return 1
        totals.update({reason.value: count for reason, count in report.ends.items()})
        totals["steps"] += report.steps
        if clock.now_ns() - told_ns > _PROGRESS_NS:
            told_ns = clock.now_ns()
            print(f"  {seed - args.seed + 1} of {args.count} scenarios", file=sys.stderr)
    assert report is not None
    if args.journal is not None:
        write_journal(args.journal, report.facts, clock, "drill")
    seconds = (clock.now_ns() - begun_ns) / 1e9
    _say(args.count, seconds, totals, report)
    return 0


def _scenario(name: str, seed: int) -> Scenario:
    from service.sim.scenarios import SCENARIOS, build_scenario, trace_scenario

    if name not in SCENARIOS and Path(name).exists():
        return trace_scenario(Path(name), seed)
    return build_scenario(name, seed)


def _say(count: int, seconds: float, totals: Counter[str], last: Report) -> None:
    steps = totals.pop("steps")
    ends = ", ".join(f"{reason} {number}" for reason, number in totals.most_common())
    print(f"{count} scenarios, {steps} steps, {seconds:.1f} s: every invariant held")
    print(f"ends: {ends}")
    print(
        f"last run: {last.sequences} sequences in {last.virtual_ns / 1e9:.2f} s of virtual time, "
        f"journal {len(last.journal)} bytes, digest {last.digest}"
    )
