"""Missed promises of simulated servers: is each form named, how soon, and in the right form?

A server misses its SLO since its start, in one of four forms (`lab/twins/faults/promise_faults`).
The answer of a run is the form that was said longest; the setting is the one said with it. The same
servers without what is wrong count as false alarms if they are said to miss anything. With
`--search` the settings search answers too: whether it comes to the same form, and whether a server
with the settings that it names as enough is said to miss nothing.

    .venv/bin/python -m benchmarks.diagnosis.promises [--seeds 20] [--first 3000] [--search]
        [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path
from random import Random

import msgspec

from benchmarks.machine import machine
from diagnosis.settings_search.answer import Setting as ChangedSetting
from diagnosis.settings_search.offline import last_window, search_run
from diagnosis.settings_search.settings import applied
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnoser
from lab.replay.recorded import read_runs
from lab.twins.faults.promise_faults import PLAIN_POLICY
from lab.twins.registry import FAULTS, TWINS, build_clean, build_twin
from lab.twins.traffic import Setting
from lab.twins.twin import Twin, simulate_twin
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


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A run; whether the same server without what is wrong was said to miss anything; what the
    search comes to, and whether the settings that it names were enough (None: not asked, or none
    were)."""

    told: Told
    is_alarm: bool
    searched: str | None = None
    is_met: bool | None = None


def judge(task: tuple[str, int, bool]) -> Judged:
    form, seed, asks = task
    one = build_twin(NAME, seed, form)
    told = tell(one.facts, one.policy, form, seed)
    clean = tell(build_clean(NAME, seed, form), PLAIN_POLICY, form, seed)
    searched, is_met = search_of(one) if asks else (None, None)
    return Judged(told=told, is_alarm=bool(clean.said), searched=searched, is_met=is_met)


def search_of(one: Twin) -> tuple[str | None, bool | None]:
    """The form that replays confirm, and whether the best settings meet the SLO on a rerun."""
    run = read_runs(one.facts)[-1]
    answer = search_run(run, last_window(run), one.policy)
    form = None if answer.form is None else answer.form.value
    if answer.best is None or not answer.best.is_met:
        return form, None
    again = with_settings(one.mechanism, one.seed, answer.best.settings)
    return form, not tell(again.facts, again.policy, one.mechanism, one.seed).said


def with_settings(form: str, seed: int, settings: Sequence[ChangedSetting]) -> Twin:
    """The same server under the same requests, with other settings."""
    fault = FAULTS[NAME][form]

    def always(setting: Setting, draw: Random) -> None:
        assert fault.always is not None
        fault.always(setting, draw)
        rate_per_s = setting.rate_per_s
        setting.limits = applied(setting.limits, settings)
        setting.load = rate_per_s / setting.capacity_per_s

    return simulate_twin(NAME, form, seed, [replace(fault, always=always)])


def summary(found: Sequence[Judged]) -> dict[str, object]:
    by_form: dict[str, object] = {}
    for form in TWINS[NAME]:
        of_form = [one for one in found if one.told.form == form]
        ones = [one.told for one in of_form]
        named = [one.named_s for one in ones if one.named_s is not None]
        by_form[form] = {
            "named": len(named),
            "right": sum(one.is_right for one in ones),
            "of": len(ones),
            "named_p50_s": quantile(named, 0.5),
            "named_max_s": max(named, default=None),
            "held_min": round(min(one.held for one in ones), 3),
            "settings": dict(Counter(one.setting for one in ones)),
            "searched": dict(Counter(one.searched for one in of_form if one.searched)),
            "met_on_rerun": sum(one.is_met is True for one in of_form),
            "said_to_be_enough": sum(one.is_met is not None for one in of_form),
        }
    return {
        "machine": machine(),
        "by_form": by_form,
        "false_alarms": sum(one.is_alarm for one in found),
        "wrong": [msgspec.to_builtins(one) for one in found if not one.told.is_right],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--search", action="store_true", help="ask the settings search, too")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    tasks = [(form, seed, args.search) for form in TWINS[NAME] for seed in seeds]
    with Pool() as pool:
        found = pool.map(judge, tasks, chunksize=2)
    data = msgspec.json.format(msgspec.json.encode(summary(found)), indent=1)
    args.out.write_bytes(data + b"\n")
    print(data.decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
