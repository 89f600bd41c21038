"""Root cause: what a slow window would have been without one difference.

The direct ledger says which requests shared a step. It does not say why there was a queue: a
request that comes late into a backlog meets only ordinary company. So the scheduler is run again
over the recorded arrivals, each difference between window and reference removed in turn. A cause is
worth what its removal would have spared: on the latencies that grew, of the requests that finish
with and without it. Where several causes help, their shares are Shapley values of the joint
replays, and what only their joint removal spares is the interaction.

(Blocked-time analysis, Ousterhout et al., NSDI 2015: remove a cause and simulate, do not
subtract.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise
from statistics import fmean

import msgspec

from diagnosis.root_cause.interventions import Cause, Intervention, interventions
from diagnosis.root_cause.limits import as_the_baseline
from diagnosis.root_cause.question import Question
from diagnosis.root_cause.thresholds import (
    JOINT_CAUSES,
    LEAST_COMPARED,
    MOVED,
    MOVED_LEAST_MS,
    NOISE_BAND,
    TAIL_QUANTILE,
)
from diagnosis.spans import Span
from lab.replay.replay_modelled import replay_modelled
from telemetry.facts.reasons import Outcome
from telemetry.facts.records import Fact
from telemetry.numbers.quantiles import quantile
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline

_WHOLE = "e2e_mean"

Values = dict[str, float]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What one intervention would have spared.

    Both shares are of the latency on which it helps most: `gain` of the latency itself, `share` of
    its growth over the reference. `spared_ms` is the sum over the compared requests. `shapley` is
    its part of what the leading causes spare together.
    """

    cause: Cause
    symptom: str
    gain: float
    share: float
    spared_ms: float
    shapley: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Causes, the one that explains most first; empty when no latency grew, or nothing helps.

    `requests` of the window finished with a first token, and `reference_requests` of what it is
    compared with; None: there is nothing to compare with. It is `compared` where both are enough;
    else nothing is known of what moved. `moved` are the latencies that grew, in ms in reference and
    window, `tried` all interventions. `interaction` is the share that only the leading causes
    together spare.
    """

    requests: int
    reference_requests: int | None = None
    compared: bool = False
    moved: dict[str, tuple[float, float]]
    gains: tuple[Gain, ...]
    tried: tuple[Cause, ...]
    interaction: float | None = None

    @property
    def top(self) -> Cause | None:
        return self.gains[0].cause if self.gains else None


def explain(question: Question, progress: Callable[[str], None] = lambda what: None) -> Explanation:
    """Replay every intervention. Raises NotReplayable."""
    unchanged = timelines_of(
        replay_modelled(question.run, question.cost, Intervention().change(question))
    )
    found = _compared(question, unchanged)
    if not found.moved:
        return found
    candidates = interventions(question)
    comparison = _Comparison(question, unchanged, found.moved)
    gains: list[Gain] = []
    for cause, intervention in candidates.items():
        progress(cause.value)
        gain = comparison.gain(cause, intervention)
        if gain is not None and gain.gain > NOISE_BAND:
            gains.append(gain)
    gains.sort(key=lambda gain: -gain.gain)
    interaction = None
    if len(gains) > 1:
        gains, interaction = comparison.shares(gains, candidates)
    return msgspec.structs.replace(
        found, gains=tuple(gains), tried=tuple(candidates), interaction=interaction
    )


def _compared(question: Question, unchanged: Sequence[RequestTimeline]) -> Explanation:
    """What moved, without causes."""
    before, now = _sides(question, unchanged)
    was, is_now = _latencies(before or ()), _latencies(now)
    return Explanation(
        requests=_with_token(now),
        reference_requests=None if before is None else _with_token(before),
        compared=bool(was and is_now),
        moved={
            name: (was[name], value)
            for name, value in is_now.items()
            if name in was and value > MOVED * was[name] and value - was[name] > MOVED_LEAST_MS
        },
        gains=(),
        tried=(),
    )


def _sides(
    question: Question, unchanged: Sequence[RequestTimeline]
) -> tuple[list[RequestTimeline] | None, list[RequestTimeline]]:
    """Requests of the reference, or those of the window replayed with the limits of the baseline
    (None: neither is known); and those of the window."""
    window = question.window
    if question.reference is not None:
        return _in(unchanged, question.reference), _in(unchanged, window)
    if question.baseline is None:
        return None, _in(unchanged, window)
    facts = replay_modelled(question.run, question.cost, as_the_baseline(question))
    before, now = finished_in_both(timelines_of(facts), unchanged)
    return _in(before, window), _in(now, window)


class _Comparison:
    """Compares replays with the one in which nothing was changed."""

    def __init__(
        self,
        question: Question,
        unchanged: Sequence[RequestTimeline],
        moved: dict[str, tuple[float, float]],
    ) -> None:
        self._question = question
        self._unchanged = unchanged
        self._moved = moved

    def gain(self, cause: Cause, intervention: Intervention) -> Gain | None:
        """What an intervention would have spared; None when too few requests are left to
        compare."""
        spared = self._compare(intervention)
        if spared is None:
            return None
        was, now, count = spared
        found: list[Gain] = []
        for name, (reference_ms, _) in self._moved.items():
            if name not in was or name not in now:
                continue
            less_ms = was[name] - now[name]
            excess_ms = was[name] - reference_ms
            found.append(
                Gain(
                    cause=cause,
                    symptom=name,
                    gain=less_ms / was[name] if was[name] else 0.0,
                    share=less_ms / excess_ms if excess_ms > 0 else 0.0,
                    spared_ms=less_ms * count,
                )
            )
        return max(found, key=lambda gain: gain.gain, default=None)

    def shares(
        self, gains: list[Gain], candidates: dict[Cause, Intervention]
    ) -> tuple[list[Gain], float]:
        """Shapley values of the leading causes on the mean E2E latency, or, if that did not grow,
        on the latency of the first cause; and the interaction: what all of them spare together
        beyond the sum of what each does."""
        leading = gains[:JOINT_CAUSES]
        symptom = _WHOLE if _WHOLE in self._moved else leading[0].symptom
        worth: dict[frozenset[Cause], float] = {frozenset(): 0.0}
        for size in range(1, len(leading) + 1):
            for group in combinations([gain.cause for gain in leading], size):
                joint = Intervention()
                for cause in group:
                    joint = joint | candidates[cause]
                worth[frozenset(group)] = self._worth(joint, symptom)
        whole = frozenset(gain.cause for gain in leading)
        values = {cause: _shapley(cause, whole, worth) for cause in whole}
        shared = [msgspec.structs.replace(gain, shapley=values.get(gain.cause)) for gain in gains]
        interaction = worth[whole] - sum(worth[frozenset({cause})] for cause in whole)
        shared.sort(key=lambda gain: -(gain.shapley if gain.shapley is not None else -1.0))
        return shared, interaction

    def _worth(self, intervention: Intervention, symptom: str) -> float:
        spared = self._compare(intervention)
        if spared is None:
            return 0.0
        was, now, _ = spared
        if symptom not in was or symptom not in now or not was[symptom]:
            return 0.0
        return (was[symptom] - now[symptom]) / was[symptom]

    def _compare(self, intervention: Intervention) -> tuple[Values, Values, int] | None:
        """Latencies without and with the intervention, and the number of compared requests; None
        for too few."""
        question = self._question
        facts = replay_modelled(question.run, question.cost, intervention.change(question))
        was, now = finished_in_both(self._unchanged, timelines_of(facts))
        count = len(_in(was, question.window))
        if count < LEAST_COMPARED:
            return None
        return symptoms(was, question.window), symptoms(now, question.window), count


def finished_in_both(
    was: Iterable[RequestTimeline], now: Iterable[RequestTimeline]
) -> tuple[list[RequestTimeline], list[RequestTimeline]]:
    """The requests that finished in both of two runs, in the same order: one that is left out or
    ended early in either is not compared."""
    found = [
        {t.accepted.request_id: t for t in run if t.outcome is Outcome.FINISHED}
        for run in (was, now)
    ]
    both = sorted(found[0].keys() & found[1].keys())
    one, other = ([run[request_id] for request_id in both] for run in found)
    return one, other


def symptoms(timelines: Iterable[RequestTimeline], span: Span) -> Values:
    """Latencies in ms of the requests that arrived in a span and finished: mean and 95th percentile
    of TTFT, means of the worst gap between tokens, of TPOT and of E2E. Empty for too few."""
    return _latencies(_in(timelines, span))


def _latencies(mine: Sequence[RequestTimeline]) -> Values:
    ttft = [t.ttft_ns for t in mine if t.ttft_ns is not None]
    if len(ttft) < LEAST_COMPARED:
        return {}
    worst = [gap for t in mine if (gap := _worst_gap_ns(t)) is not None]
    tpot = [t.tpot_ns for t in mine if t.tpot_ns is not None]
    values = {
        "ttft_mean": fmean(ttft),
        "ttft_p95": float(quantile(ttft, TAIL_QUANTILE) or 0),
        _WHOLE: fmean(t.e2e_ns for t in mine),
    }
    if worst and tpot:
        values |= {"worst_gap_mean": fmean(worst), "tpot_mean": fmean(tpot)}
    return {name: value / 1e6 for name, value in values.items()}


def _in(timelines: Iterable[RequestTimeline], span: Span) -> list[RequestTimeline]:
    return [t for t in timelines if span.has(t.accepted.at_ns) and t.outcome is Outcome.FINISHED]


def _with_token(timelines: Iterable[RequestTimeline]) -> int:
    return sum(t.ttft_ns is not None for t in timelines)


def _worst_gap_ns(timeline: RequestTimeline) -> int | None:
    return max((b - a for s in timeline.sequences for a, b in pairwise(s.token_ns)), default=None)


def timelines_of(facts: Iterable[Fact]) -> list[RequestTimeline]:
    """The timelines of all requests that ended, in the order in which they ended."""
    found: list[RequestTimeline] = []
    fold = PhaseFold([found.append])
    fold.on_facts(list(facts))
    fold.close()
    return found


def _shapley(cause: Cause, whole: frozenset[Cause], worth: dict[frozenset[Cause], float]) -> float:
    """The mean, over all orders, of what a cause adds to those before it."""
    others, size = whole - {cause}, len(whole)
    total = 0.0
    for count in range(len(others) + 1):
        weight = math.factorial(count) * math.factorial(size - count - 1) / math.factorial(size)
        for group in combinations(sorted(others), count):
            before = frozenset(group)
            total += weight * (worth[before | {cause}] - worth[before])
    return total
