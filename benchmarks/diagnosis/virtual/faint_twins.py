"""Accuracy on faint faults in virtual time: a few requests are late, again and again.

A fault counts as named from the first right first finding; it is held for the share of the rest of
the fault in which the first finding is right. What stood longest in the second half is the answer.

    .venv/bin/python -m benchmarks.diagnosis.virtual.faint_twins [--seeds 5] [--first 3000]
        [--classes A,B] [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path

import msgspec

from benchmarks.diagnosis.virtual.twins import live_through, standing, stood_longest
from benchmarks.machine import machine
from diagnosis.verdicts.classifier import Diagnosis
from lab.twins.faint import FAINT, build_faint
from lab.twins.twin import Twin
from telemetry.numbers.quantiles import median

RESULTS = Path(__file__).resolve().parents[2] / "results" / "diagnosis" / "faint_twins.json"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One twin. `to_name_s` is None where it was never named, `held` the share of the rest of the
    fault; `after_s` is how long a finding stood after the fault."""

    truth: str
    mechanism: str
    seed: int
    answer: str
    to_name_s: float | None
    held: float
    after_s: float
    false_before: int
    others: dict[str, float]

    @property
    def is_right(self) -> bool:
        return self.answer == self.truth


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    machine: dict[str, object]
    twins: int
    top_1: float
    to_name_p50_s: float | None
    held_mean: float
    held_least_share: float
    by_mechanism: dict[str, tuple[int, int, float | None, float]]
    false_before: int
    judged: list[Judged]


def judge(task: tuple[str, str, int]) -> Judged:
    name, mechanism, seed = task
    one = build_faint(name, seed, mechanism)
    return judge_verdicts(one, mechanism, live_through(one))


def judge_verdicts(one: Twin, mechanism: str, found: Sequence[tuple[int, Diagnosis]]) -> Judged:
    """The twin judged by every verdict on it, each with the time from which it holds."""
    name, onset_ns, end_ns = one.name, one.onset_ns, one.end_ns
    assert onset_ns is not None
    assert end_ns is not None
    said = [
        (at_ns, tuple(f.symptom.value for f in verdict.findings[:1])) for at_ns, verdict in found
    ]
    named_ns = next((at for at, top in said if onset_ns <= at < end_ns and top == (name,)), None)
    rest = standing(said, end_ns if named_ns is None else named_ns, end_ns)
    half = stood_longest(said, (onset_ns + end_ns) // 2, end_ns)
    after = standing(said, end_ns, said[-1][0])
    whole: Counter[tuple[str, ...]] = standing(said, onset_ns, end_ns)
    before = [bool(top) for at, top in said if at < onset_ns]
    return Judged(
        truth=name,
        mechanism=mechanism,
        seed=one.seed,
        answer=half[0] if half else "healthy",
        to_name_s=None if named_ns is None else round((named_ns - onset_ns) / 1e9, 2),
        held=round(rest[(name,)] / rest.total(), 3) if rest.total() else 0.0,
        after_s=round(sum(ns for top, ns in after.items() if top) / 1e9, 2),
        false_before=sum(now and not was for was, now in pairwise([False, *before])),
        others={"".join(top) or "healthy": round(ns / 1e9, 1) for top, ns in whole.items()},
    )


def summary(judged: Sequence[Judged]) -> Summary:
    by: dict[str, list[Judged]] = {}
    for one in judged:
        by.setdefault(f"{one.truth}/{one.mechanism}", []).append(one)
    return Summary(
        machine=machine(),
        twins=len(judged),
        top_1=round(sum(one.is_right for one in judged) / len(judged), 4),
        to_name_p50_s=_median_s(judged),
        held_mean=round(sum(one.held for one in judged) / len(judged), 3),
        held_least_share=round(sum(one.held >= 0.8 for one in judged) / len(judged), 3),
        by_mechanism={
            name: (
                sum(one.is_right for one in ones),
                len(ones),
                _median_s(ones),
                round(sum(one.held for one in ones) / len(ones), 2),
            )
            for name, ones in by.items()
        },
        false_before=sum(one.false_before for one in judged),
        judged=list(judged),
    )


def _median_s(judged: Sequence[Judged]) -> float | None:
    """The median time in s until the right name; one that was never named counts as infinite."""
    found = median([float("inf") if o.to_name_s is None else o.to_name_s for o in judged])
    return None if found in (None, float("inf")) else found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=3000, help="the first seed")
    parser.add_argument("--classes", help="only these, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    names = args.classes.split(",") if args.classes else list(FAINT)
    seeds = range(args.first, args.first + args.seeds)
    tasks = [(name, how, seed) for name in names for how in FAINT[name] for seed in seeds]
    with Pool() as pool:
        found = summary(pool.map(judge, tasks, chunksize=1))
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    for name, row in found.by_mechanism.items():
        print(f"{name:42} {row[0]} of {row[1]}, named after {row[2]} s, held {row[3]:.0%}")
    print(f"top-1 {found.top_1}, named p50 {found.to_name_p50_s} s, held {found.held_mean:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
