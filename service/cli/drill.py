"""`phasescope drill`: faults in a real server, or the scheduler in simulated scenarios."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.say import complain
from service.config.settings import ConfigError
from telemetry.facts.clock import MonotonicClock

if TYPE_CHECKING:  # imported when they are run: every command reads this file
    from lab.drills.outcome.result import EpisodeResult
    from lab.simulation.world import Report, Scenario

_PROGRESS_NS = 2_000_000_000


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "drill",
        help="inject faults into a real server, or run the scheduler through simulated scenarios",
        description="With NAME: start a server, send traffic, inject that fault for a while, and "
        "record what was done, what clients measured and what the server diagnosed. With --sim: "
        "run simulated scenarios and check invariants.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the class of fault; see --list")
    parser.add_argument("--list", action="store_true", help="list all classes and mechanisms")
    parser.add_argument("--seed", type=int, default=0, help="seed of arrivals, prompts and lengths,"
                        " or the first with --sim (default 0)")  # fmt: skip
    _add_real_flags(parser.add_argument_group("real server"))
    _add_sim_flags(parser.add_argument_group("simulation"))
    parser.set_defaults(run=run)


def _add_real_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mechanism", metavar="M", help="how to cause the fault (default: the first of --list)"
    )
    group.add_argument(
        "--intensity",
        type=float,
        metavar="X",
        help="how strong, in the mechanism's unit (default: its middle level)",
    )
    group.add_argument("--model", help="as for `phasescope serve` (default: the default model)")
    group.add_argument(
        "--weights", default="int8", choices=["auto", "int8"], help="format of the weights"
    )
    group.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where episodes, labels and the measured capacity go; by default "
        "~/.cache/phasescope/drills",
    )
    for name, default in (("warm-up", 20), ("reference", 20), ("fault", 25), ("recovery", 15)):
        group.add_argument(
            f"--{name}",
            type=float,
            default=float(default),
            metavar="S",
            help=f"length of this phase in seconds (default {default})",
        )


def _add_sim_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--sim",
        metavar="SCENARIO",
        help="the name of a scenario (an unknown name prints the list), or a trace file of "
        "JSON lines (at_ms, prompt_tokens, max_tokens, tenant, priority)",
    )
    group.add_argument("--count", type=int, default=1, help="number of seeds (default 1)")
    group.add_argument("--journal", type=Path, help="write the facts of the last run here")


def run(args: argparse.Namespace) -> int:
    if args.list:
        from lab.drills.registry import lines

        print("\n".join(lines()))
        return 0
    if (args.sim is None) == (args.name is None):
        raise ConfigError("give the NAME of a drill or --sim SCENARIO; --list shows the drills")
    return _run_real(args) if args.sim is None else _run_sim(args)


# --- a real server -------------------------------------------------------------------------


def _run_real(args: argparse.Namespace) -> int:
    from lab.drills.episode import run_episode
    from lab.drills.servers import DidNotStart
    from lab.drills.spec import EpisodeSpec, Phases

    spec = EpisodeSpec(
        symptom=args.name,
        mechanism=args.mechanism,
        intensity=args.intensity,
        seed=args.seed,
        model=args.model,
        weights=args.weights,
        phases=Phases(
            warm_up_s=args.warm_up,
            reference_s=args.reference,
            fault_s=args.fault,
            recovery_s=args.recovery,
        ),
        out=args.out or _drills_folder(),
    )
    try:
        result = run_episode(spec, lambda line: print(f"phasescope: {line}", file=sys.stderr))
    except DidNotStart as error:
        print(f"phasescope: the server did not start: {error}", file=sys.stderr)
        return 1
    _print_result(result)
    print(f"journal, clients and answers: {spec.out / result.name}")
    return 0


def _drills_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "phasescope" / "drills"


def _print_result(result: EpisodeResult) -> None:
    """A line a phase, then the server's verdicts."""
    measures = ("ttft_p50", "ttft_p95", "itl_p50", "stall_p95", "tpot_p95", "e2e_p50")
    print(f"{'ms':<11}{'requests':>9}{'good':>6}" + "".join(f"{name:>11}" for name in measures))
    for phase, seen in result.clients.items():
        values = (getattr(seen, name) for name in measures)
        cells = "".join(f"{'-' if value is None else format(value, '.1f'):>11}" for value in values)
        print(f"{phase:<11}{seen.requests:>9}{seen.good:>6}{cells}")
    for measure in result.harms:
        rise = result.rise(measure)
        print(f"{measure}: {'-' if rise is None else format(rise, '.2f')} times the reference")
    if result.exit_line is not None:
        print(f"the server ended ({result.exit_code}): {result.exit_line}")
    for change in result.verdicts:
        named = ", ".join(f"{symptom} {confidence:.2f}" for symptom, confidence in change.named)
        print(f"{change.at_s:7.1f} s  {change.verdict} {named}")
    if result.on_s is not None and result.off_s is not None:
        print(f"the fault was on from {result.on_s:.1f} to {result.off_s:.1f} s")
    for reason in result.discarded:
        print(f"does not count: {reason}")


# --- simulated worlds ----------------------------------------------------------------------


def _run_sim(args: argparse.Namespace) -> int:
    from lab.simulation.evidence import InvariantViolated
    from lab.simulation.world import World
    from telemetry.journal.journal import write_journal

    if args.count < 1:
        raise ConfigError("--count must be at least 1")
    clock = MonotonicClock()
    begun_ns = printed_ns = clock.now_ns()
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
        if clock.now_ns() - printed_ns > _PROGRESS_NS:
            printed_ns = clock.now_ns()
            print(f"  {seed - args.seed + 1} of {args.count} scenarios", file=sys.stderr)
    assert report is not None
    if args.journal is not None:
        try:
            write_journal(args.journal, report.facts, clock, "drill")
        except OSError as error:
            complain(f"{args.journal}: {error.strerror}")
            return 1
    seconds = (clock.now_ns() - begun_ns) / 1e9
    _print_totals(args.count, seconds, totals, report)
    return 0


def _scenario(name: str, seed: int) -> Scenario:
    from lab.simulation.scenarios import SCENARIOS, build_scenario, trace_scenario

    if name not in SCENARIOS and Path(name).exists():
        return trace_scenario(Path(name), seed)
    return build_scenario(name, seed)


def _print_totals(count: int, seconds: float, totals: Counter[str], last: Report) -> None:
    steps = totals.pop("steps")
    ends = ", ".join(f"{reason} {number}" for reason, number in totals.most_common())
    print(f"{count} scenarios, {steps} steps, {seconds:.1f} s: every invariant held")
    print(f"ends: {ends}")
    print(
        f"last run: {last.sequences} sequences in {last.virtual_ns / 1e9:.2f} s of virtual time, "
        f"journal {len(last.journal)} bytes, digest {last.digest}"
    )
