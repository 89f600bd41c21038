"""Attributed against true delay: how much longer requests took than in a clean twin."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from benchmarks.diagnosis.predicted_gain import PredictedGain
from diagnosis.root_cause.counterfactual import (
    Values,
    explain,
    finished_in_both,
    symptoms,
    timelines_of,
)
from diagnosis.root_cause.interventions import Cause, Intervention, interventions
from diagnosis.root_cause.question import Question
from diagnosis.root_cause.root import ACTIONS
from diagnosis.symptoms import Symptom
from lab.replay.replay_modelled import replay_modelled
from telemetry.numbers.quantiles import quantile
from telemetry.requests.phases import RequestTimeline

_FLOORS = 3.0
_LEAST_INNOCENT = 5


class TwinLatencies(NamedTuple):
    """Measured latencies in ms with the fault and in the clean twin, at the time of the fault and
    before it; those before are empty where they were not recorded."""

    faulty: Values
    clean: Values
    faulty_before: Values
    clean_before: Values

    def floor_ms(self, measure: str) -> float:
        """The difference of the two before the fault, in ms."""
        one, other = self.faulty_before.get(measure), self.clean_before.get(measure)
        return 0.0 if one is None or other is None else abs(one - other)


class Pair(PredictedGain, frozen=True, kw_only=True):
    """A fault and its clean twin. Times in ms, of `measure`, a mean over the affected requests."""

    name: str
    named: str
    blamed_ms: float = 0.0
    true_ms: float = 0.0
    floor_ms: float = 0.0

    @property
    def counts(self) -> bool:
        return not self.why_not and self.true_ms > _FLOORS * self.floor_ms

    @property
    def error(self) -> float:
        return abs(self.blamed_ms - self.true_ms) / self.true_ms


def weigh(
    name: str, named: str, question: Question, mine: frozenset[str], met: TwinLatencies
) -> Pair:
    """The delay attributed to the best explaining cause of the named symptom, on the latency of its
    predicted gain, beside the true delay. Raises NotReplayable."""
    causes = ACTIONS.get(Symptom(named), ()) if named in set(Symptom) else ()
    if not causes:
        return Pair(name=name, named=named, why_not="no intervention exists for it")
    gains = {gain.cause: gain for gain in explain(question).gains}
    known = [cause for cause in causes if cause in gains]
    if not known:
        return Pair(name=name, named=named, why_not="no intervention helps")
    cause = max(known, key=lambda one: gains[one].gain)
    measure = gains[cause].symptom
    was, now = _replayed(question, cause, mine)
    if any(measure not in one for one in (was, now, met.faulty, met.clean)):
        return Pair(name=name, named=named, why_not="too few requests to compare")
    true_ms = met.faulty[measure] - met.clean[measure]
    return Pair(
        name=name,
        named=named,
        cause=cause.value,
        measure=measure,
        blamed_ms=round(was[measure] - now[measure], 2),
        true_ms=round(true_ms, 2),
        floor_ms=round(met.floor_ms(measure), 2),
        promised=round(1 - now[measure] / was[measure], 4),
        kept=round(true_ms / met.faulty[measure], 4),
    )


def _replayed(question: Question, cause: Cause, mine: frozenset[str]) -> tuple[Values, Values]:
    """Latencies of the affected requests by the replay, with and without the cause."""

    def replayed(change: Intervention) -> list[RequestTimeline]:
        facts = replay_modelled(question.run, question.cost, change.change(question))
        return of(mine, timelines_of(facts))

    was, now = finished_in_both(replayed(Intervention()), replayed(interventions(question)[cause]))
    return symptoms(was, question.window), symptoms(now, question.window)


def affected(innocent: Collection[str], all_of_them: Collection[str]) -> frozenset[str]:
    """The requests during a fault that did not cause it, or all where these are too few."""
    return frozenset(innocent if len(innocent) >= _LEAST_INNOCENT else all_of_them)


def of(ids: frozenset[str], timelines: Iterable[RequestTimeline]) -> list[RequestTimeline]:
    return [one for one in timelines if one.accepted.request_id in ids]


def summary(pairs: Sequence[Pair]) -> dict[str, object]:
    counted = [pair for pair in pairs if pair.counts]
    errors = [pair.error for pair in counted]
    off = [pair.off for pair in counted]
    error_p90 = quantile(errors, 0.9)
    return {
        "episodes": len(pairs),
        "compared": len(counted),
        "error_median": round(statistics.median(errors), 4) if errors else None,
        "error_p90": None if error_p90 is None else round(error_p90, 4),
        "promise_off_median": round(statistics.median(off), 4) if off else None,
        "promise_within_20_percent": sum(one <= 0.2 for one in off),
    }
