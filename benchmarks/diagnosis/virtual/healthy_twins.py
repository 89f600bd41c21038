"""False alarms per hour of the diagnosis on simulated healthy servers.

Runs of ten minutes at six loads, with steady arrivals (Poisson), surges (MMPP) and a rate that
changes as over a day, of servers and mixes that differ from seed to seed. There is no
fault, so every finding is a false alarm; findings in the first twenty seconds are not counted, as
in the episodes. The noise of a loaded machine is not simulated: the series `healthy` of real
servers has it (`episodes.py`).

    .venv/bin/python -m benchmarks.diagnosis.virtual.healthy_twins [--hours 6] [--first 5000]
        [--out FILE] [--patterns poisson,surges,swing]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path
from random import Random

import msgspec

from benchmarks.diagnosis.episodes import HEALTHY_LOADS, RESULTS
from benchmarks.machine import machine
from diagnosis.verdicts.classifier import Diagnoser
from lab.twins.simulate import simulate
from lab.twins.simulated_run import START_NS, SimulatedRun, Span
from lab.twins.traffic import Setting, Surges, Swing
from telemetry.facts.records import fact_ns

OUT = RESULTS.parent / "healthy_twins.json"
LIFE_S, WARM_S = 620.0, 20.0
FIRST_SEED = 5000  # those below were looked at


def _poisson(setting: Setting) -> None:
    """The usual setting as it is."""


def _surges(setting: Setting) -> None:
    """They stay below what the engine can do: more is an overload."""
    setting.surges = Surges(high=min(1.8, 0.95 / setting.load))


def _swing(setting: Setting) -> None:
    """At the highest load it stays just below what the engine can do."""
    setting.swing = Swing(part=min(0.4, 0.95 / setting.load - 1))


PATTERNS = {"poisson": _poisson, "surges": _surges, "swing": _swing}


class Alarm(msgspec.Struct, frozen=True):
    """The first finding of a run, from and until when, in seconds of the run."""

    pattern: str
    load: float
    seed: int
    named: str
    from_s: float
    until_s: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    machine: dict[str, object]
    patterns: tuple[str, ...]
    loads: tuple[float, ...]
    hours: float
    false_alarms: int
    false_alarms_per_hour: float
    longest_s: float
    alarms: list[Alarm]


def alarms_of(task: tuple[str, float, int]) -> list[Alarm]:
    """One run, fact by fact."""
    pattern, load, seed = task
    key = f"healthy/{load}/{seed}" if pattern == "poisson" else f"healthy/{pattern}/{load}/{seed}"
    setting = Setting.drawn(Random(key))
    setting.load = load
    PATTERNS[pattern](setting)
    run = SimulatedRun.baseline(setting, key, Span.of_seconds(0, LIFE_S))
    run.renumber()
    diagnoser, named = Diagnoser(policy=setting.policy), list[tuple[float, str]]()
    for fact in simulate(run):
        diagnoser.on_facts([fact])
        findings = diagnoser.diagnosis().findings
        top = findings[0].symptom.value if findings else ""
        if bool(top) != bool(named and named[-1][1]):
            named.append(((fact_ns(fact) - START_NS) / 1e9, top))
    named.append((LIFE_S, ""))
    return [
        Alarm(pattern, load, seed, top, round(at_s, 1), round(until_s, 1))
        for (at_s, top), (until_s, _) in pairwise(named)
        if top and until_s > WARM_S
    ]


def summary(found: Iterable[list[Alarm]], patterns: tuple[str, ...], runs: int) -> Summary:
    alarms = [alarm for of_one in found for alarm in of_one]
    hours = runs * (LIFE_S - WARM_S) / 3600
    return Summary(
        machine=machine(),
        patterns=patterns,
        loads=HEALTHY_LOADS,
        hours=hours,
        false_alarms=len(alarms),
        false_alarms_per_hour=round(len(alarms) / hours, 3),
        longest_s=max((round(one.until_s - one.from_s, 1) for one in alarms), default=0.0),
        alarms=alarms,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=int, default=6, help="of each pattern: a run of each load")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--patterns", default=",".join(PATTERNS))
    args = parser.parse_args()
    patterns = tuple(args.patterns.split(","))
    seeds = range(args.first, args.first + args.hours)
    tasks = [(one, load, seed) for seed in seeds for one in patterns for load in HEALTHY_LOADS]
    found: list[list[Alarm]] = []
    with Pool() as pool:
        for done, alarms in enumerate(pool.imap(alarms_of, tasks), 1):
            found.append(alarms)
            said = ", ".join(f"{one.named} at {one.from_s:g} s" for one in alarms)
            print(f"  {done} of {len(tasks)} runs {said}".rstrip(), flush=True)
    data = msgspec.json.format(msgspec.json.encode(summary(found, patterns, len(tasks))), indent=1)
    args.out.write_bytes(data + b"\n")
    print(data.decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
