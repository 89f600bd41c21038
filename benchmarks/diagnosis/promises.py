"""Missed promises of simulated servers: is each form named, how soon, and in the right form?

A server misses its SLO since its start, in one of four forms (`lab/twins/faults/promise_faults`).
The answer of a run is the form that was said longest; the setting is the one said with it. The same
servers without what is wrong count as false alarms if they are said to miss anything.

    .venv/bin/python -m benchmarks.diagnosis.promises [--seeds 20] [--first 3000] [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path

import msgspec

from benchmarks.machine import machine
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnoser
from lab.twins.faults.promise_faults import PLAIN_POLICY
from lab.twins.registry import TWINS, build_clean, build_twin
from telemetry.facts.records import Fact, fact_ns
from telemetry.numbers.quantiles import quantile
from telemetry.requests.slo_policy import SloPolicy

OUT = Path(__file__).resolve().parents[1] / "results" / "diagnosis" / "promises.json"
NAME = Symptom.SLO_MISSED.value
FIRST_SEED = 3000  # those below were looked at


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One run: the form that was said longest, the setting with it, when the miss was first named,
    and its share of the ticks from then on."""

    form: str
    seed: int
    said: str
    setting: str
    named_s: float | None
    held: float

    @property
    def is_right(self) -> bool:
        return self.said == self.form


def tell(facts: Sequence[Fact], policy: SloPolicy, form: str, seed: int) -> Told:
    """Diagnose a run fact by fact, each verdict once."""
    diagnoser = Diagnoser(policy=policy)
    said: Counter[tuple[str, str]] = Counter()
    named_s, last, silent = None, diagnoser.diagnosis(), 0
    for fact in facts:
        diagnoser.on_facts([fact])
        if diagnoser.diagnosis() is last:
            continue
        last = diagnoser.diagnosis()
        promises = [promise for finding in last.findings for promise in finding.promises]
        if promises and named_s is None:
            named_s = (fact_ns(fact) - fact_ns(facts[0])) / 1e9
        said.update({(one.form.value, one.setting) for one in promises[:1]})
        silent += named_s is not None and not promises
    name, setting = said.most_common(1)[0][0] if said else ("", "")
    held = said.total() / max(1, said.total() + silent)
    return Told(form=form, seed=seed, said=name, setting=setting, named_s=named_s, held=held)


def judge(task: tuple[str, int]) -> tuple[Told, bool]:
    """The run, and whether the same server without what is wrong was said to miss anything."""
    form, seed = task
    one = build_twin(NAME, seed, form)
    clean = tell(build_clean(NAME, seed, form), PLAIN_POLICY, form, seed)
    return tell(one.facts, one.policy, form, seed), bool(clean.said)


def summary(found: Sequence[tuple[Told, bool]]) -> dict[str, object]:
    by_form: dict[str, object] = {}
    for form in TWINS[NAME]:
        ones = [one for one, _ in found if one.form == form]
        named = [one.named_s for one in ones if one.named_s is not None]
        by_form[form] = {
            "named": len(named),
            "right": sum(one.is_right for one in ones),
            "of": len(ones),
            "named_p50_s": quantile(named, 0.5),
            "named_max_s": max(named, default=None),
            "held_min": round(min(one.held for one in ones), 3),
            "settings": dict(Counter(one.setting for one in ones)),
        }
    return {
        "machine": machine(),
        "by_form": by_form,
        "false_alarms": sum(is_alarm for _, is_alarm in found),
        "wrong": [msgspec.to_builtins(one) for one, _ in found if not one.is_right],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    tasks = [(form, seed) for form in TWINS[NAME] for seed in seeds]
    with Pool() as pool:
        found = pool.map(judge, tasks, chunksize=2)
    data = msgspec.json.format(msgspec.json.encode(summary(found)), indent=1)
    args.out.write_bytes(data + b"\n")
    print(data.decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
