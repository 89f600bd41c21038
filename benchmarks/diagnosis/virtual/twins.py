"""Accuracy of the diagnosis on simulated servers: every class, many seeds.

Each twin is diagnosed fact by fact. Its answer is the finding that stood longest in the second half
of the fault (and five seconds more where its record ends with the fault); of a healthy twin, any
finding counts. Mechanisms alternate: a class with two has each of them on every second seed.

    .venv/bin/python -m benchmarks.diagnosis.virtual.twins [--seeds 20] [--first 1000]
        [--classes A,B] [--compounds] [--attached] [--out FILE]

With `--attached` each twin is seen as an adapter in another engine sees it
(`lab.simulation.attached`), and classes that abstain there are counted apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pool
from pathlib import Path

from benchmarks.machine import machine
from diagnosis.needs import NEEDS, NO_ADAPTER_SEES, Need
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from lab.simulation.attached import UNOBSERVED, attached
from lab.twins.compounds import COMPOUNDS, build_compound
from lab.twins.registry import TWINS, build_twin
from lab.twins.twin import Twin
from telemetry.facts.records import fact_ns
from telemetry.numbers.quantiles import quantile_sorted

RESULTS = Path(__file__).resolve().parents[2] / "results" / "diagnosis" / "twins.json"
HEALTHY = "healthy"
MISSED = Symptom.SLO_MISSED.value
SECOND = 1e9
_AFTER_NS = 5_000_000_000
_UNSEEN = NO_ADAPTER_SEES | {need for need in Need if need.value in UNOBSERVED}
_ABSTAINING = frozenset(s.value for s, needs in NEEDS.items() if _UNSEEN & set(needs.needs))


@dataclass(frozen=True, slots=True)
class Judged:
    """One twin. `named` are the findings of most of the second half, the first of them first. What
    is missed (`slo_missed`) stands after what made it so, and counts wherever it stands."""

    truth: str
    mechanism: str
    seed: int
    named: list[str]
    to_detect_s: float | None
    onset_error_s: float | None
    alarms_before: int
    judged_s: float

    @property
    def is_right(self) -> bool:
        return self.truth in (self.named if self.truth == MISSED else self.named[:1])


@dataclass(frozen=True, slots=True)
class Pair:
    """Two faults at once: for which share of their time both were among the first three, and what
    stood longest."""

    names: tuple[str, str]
    seed: int
    share: float
    said: list[str]

    @property
    def is_right(self) -> bool:
        return self.share > 0.5


def live_through(one: Twin) -> list[tuple[int, Diagnosis]]:
    """Every verdict, and since when it holds."""
    baseline = None
    if one.before is not None:
        first = Diagnoser()
        first.on_facts(one.before)
        baseline = first.baseline()
    diagnoser = Diagnoser(baseline, one.policy)
    found: list[tuple[int, Diagnosis]] = []
    for fact in one.facts:
        diagnoser.on_facts([fact])
        said = diagnoser.diagnosis()
        if not found or said is not found[-1][1]:
            found.append((fact_ns(fact), said))
    return found


def judge(one: Twin, truth: str) -> Judged:
    begun_s = time.process_time()
    found = live_through(one)
    return judge_verdicts(one, truth, found, time.process_time() - begun_s)


def judge_verdicts(
    one: Twin, truth: str, found: Sequence[tuple[int, Diagnosis]], spent_s: float
) -> Judged:
    """The twin judged by every verdict on it, each with the time from which it holds."""
    names = [(at_ns, tuple(f.symptom.value for f in said.findings)) for at_ns, said in found]
    if one.onset_ns is None:
        said = Counter(name for _, name in names if name)
        named = list(said.most_common(1)[0][0]) if said else [HEALTHY]
        alarms = _alarms([name for _, name in names])
        return Judged(truth, one.mechanism, one.seed, named, None, None, alarms, spent_s)
    end_ns = one.end_ns or names[-1][0] + _AFTER_NS
    named = stood_longest(names, (one.onset_ns + end_ns) // 2, end_ns)
    right = [
        (at_ns, s) for at_ns, s in found
        if one.onset_ns <= at_ns < end_ns and _names(s, truth)
    ]  # fmt: skip
    to_detect_s = (right[0][0] - one.onset_ns) / SECOND if right else None
    onset_ns = right[0][1].onset_ns if right else None
    error_s = None if onset_ns is None else abs(onset_ns - one.onset_ns) / SECOND
    before = [name for at_ns, name in names if at_ns < one.onset_ns]
    return Judged(
        truth, one.mechanism, one.seed, named or [HEALTHY], to_detect_s, error_s,
        _alarms(before), spent_s,
    )  # fmt: skip


def _names(said: Diagnosis, truth: str) -> bool:
    found = [finding.symptom.value for finding in said.findings]
    return truth in (found if truth == MISSED else found[:1])


def stood_longest(
    names: Sequence[tuple[int, tuple[str, ...]]], begin_ns: int, end_ns: int
) -> list[str]:
    """The findings that stood longest within [begin, end)."""
    times = standing(names, begin_ns, end_ns)
    return list(times.most_common(1)[0][0]) if times else []


def standing(
    names: Sequence[tuple[int, tuple[str, ...]]], begin_ns: int, end_ns: int
) -> Counter[tuple[str, ...]]:
    """For how long each list of findings stood within [begin, end), in ns."""
    times: Counter[tuple[str, ...]] = Counter()
    ends = [at_ns for at_ns, _ in names[1:]] + [end_ns]
    for (at_ns, name), until_ns in zip(names, ends, strict=True):
        times[name] += max(0, min(until_ns, end_ns) - max(at_ns, begin_ns))
    return times


def _alarms(names: Sequence[tuple[str, ...]]) -> int:
    """The number of new findings."""
    pairs = zip([(), *names], names, strict=False)
    return sum(not before and bool(after) for before, after in pairs)


def _twin(name: str, seed: int) -> Twin:
    mechanisms = TWINS[name]
    return build_twin(name, seed, mechanisms[seed % len(mechanisms)])


def _truth(name: str) -> str:
    return HEALTHY if name.startswith(HEALTHY) else name


def judge_class(task: tuple[str, int]) -> Judged:
    name, seed = task
    return judge(_twin(name, seed), _truth(name))


def judge_pair(task: tuple[tuple[str, str], int]) -> Pair:
    """The twin with two faults, judged by what stood while both were there."""
    names, seed = task
    one = build_compound(names, seed)
    assert one.together_ns is not None, f"{names} are never there at once"
    said = [(at_ns, tuple(f.symptom.value for f in d.findings)) for at_ns, d in live_through(one)]
    times = standing(said, *one.together_ns)
    total_ns = sum(times.values())
    both_ns = sum(ns for found, ns in times.items() if set(names) <= set(found[:3]))
    return Pair(names, seed, both_ns / total_ns, list(times.most_common(1)[0][0]))


def judge_attached(task: tuple[str, int]) -> Judged:
    """The twin judged as an adapter in another engine would have seen it."""
    name, seed = task
    one = _twin(name, seed)
    before = None if one.before is None else attached(one.before, seed=seed)
    return judge(replace(one, facts=attached(one.facts, seed=seed), before=before), _truth(name))


def summary(judged: Sequence[Judged]) -> dict[str, object]:
    by_class: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        by_class[one.truth].append(one)
    detected = sorted(o.to_detect_s for o in judged if o.to_detect_s is not None)
    p50_s, p95_s = quantile_sorted(detected, 0.5), quantile_sorted(detected, 0.95)
    return {
        "twins": len(judged),
        "top_1": round(sum(one.is_right for one in judged) / len(judged), 4),
        "to_detect_p50_s": None if p50_s is None else round(p50_s, 2),
        "to_detect_p95_s": None if p95_s is None else round(p95_s, 2),
        "false_alarms_before": sum(one.alarms_before for one in judged),
        "by_class": {
            name: [sum(one.is_right for one in ones), len(ones)] for name, ones in by_class.items()
        },
        "wrong": [asdict(one) for one in judged if not one.is_right],
    }


def of_pairs(told: Sequence[Pair]) -> dict[str, object]:
    missed = [one for one in told if not one.is_right]
    first = sum(bool(one.said) and one.said[0] in one.names for one in told)
    return {
        "pairs": len(told),
        "both_in_top_3": round(1 - len(missed) / len(told), 4),
        "first_is_one_of_them": round(first / len(told), 4),
        "missed": [[*one.names, one.seed, round(one.share, 2), one.said] for one in missed],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--classes", help="only these, separated by commas")
    parser.add_argument("--compounds", action="store_true", help="pairs of faults, too")
    parser.add_argument("--attached", action="store_true", help="as an attached engine")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    names = args.classes.split(",") if args.classes else list(TWINS)
    seeds = range(args.first, args.first + args.seeds)
    with Pool() as pool:
        judged: list[Judged] = []
        tasks = [(name, seed) for seed in seeds for name in names]
        for number, one in enumerate(
            pool.imap(judge_attached if args.attached else judge_class, tasks), 1
        ):
            judged.append(one)
            if number % 24 == 0:
                print(f"  {number} of {len(tasks)}", flush=True)
        found = {"machine": machine(), **summary(judged)}
        if args.attached:
            whole = [one for one in judged if one.truth not in _ABSTAINING]
            found["of_classes_that_are_judged"] = summary(whole)["top_1"]
            found["abstaining"] = sorted(_ABSTAINING)
        if args.compounds:
            pairs = [(names, seed) for seed in seeds for names in COMPOUNDS]
            told = pool.map(judge_pair, pairs)
            found["compounds"] = of_pairs(told)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k not in ("wrong", "machine")}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
