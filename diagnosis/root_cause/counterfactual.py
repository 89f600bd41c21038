"""The root of a slow window: what it would have been with one difference put back.

The direct ledger says who was in the step with whom. It does not say why there was a queue:
whoever comes late into a backlog meets only ordinary company. So the scheduler is run again
over the recorded arrivals, each difference between the window and its reference taken away in
turn, and a cause is what the sufferers would have been spared by it: counted on the symptoms
that moved, among those requests that are there either way. Where several causes help, their
shares are Shapley values of the joint replays, and what only the joint removes is said apart.

(Blocked-time analysis, Ousterhout et al., NSDI 2015: remove a cause and simulate, do not
subtract.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise
from statistics import fmean

import msgspec

from diagnosis.root_cause.interventions import Cause, Edit, interventions
from diagnosis.root_cause.question import Question, Span
from lab.replay.replay_modelled import replay_modelled
from telemetry.facts.reasons import Outcome
from telemetry.facts.records import Fact
from telemetry.numbers.quantiles import quantile
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline

# a symptom has moved when it is that much larger than in the reference
_MOVED = 1.2
_MOVED_LEAST_MS = 5.0
# what a replay differs from another by for no reason
NOISE_BAND = 0.05
_JOINT_CAUSES = 3
_LEAST_REQUESTS = 3
_WHOLE = "e2e_mean"

Values = dict[str, float]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What one intervention would have spared.

    `gain` is the share of the symptom itself, `share` that of its excess over the reference,
    both of the symptom on which it helps most. `spared_ms` is what the sufferers would have been
    spared of it, all together. `shapley` is its part of what the leading causes remove together.
    """

    cause: Cause
    symptom: str
    gain: float
    share: float
    spared_ms: float
    shapley: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Ranked causes, the one that explains most first; none when nothing moved, or nothing
    helps. `interaction` is the share that only the leading causes together remove. `moved`
    names symptoms with their values in ms in reference and window."""

    requests: int
    moved: dict[str, tuple[float, float]]
    gains: tuple[Gain, ...]
    tried: tuple[Cause, ...]
    interaction: float | None = None

    @property
    def top(self) -> Cause | None:
        return self.gains[0].cause if self.gains else None


def explain(question: Question, progress: Callable[[str], None] = lambda what: None) -> Explanation:
    """Try every intervention that differs. Raises NotReplayable."""
    window = question.window
    as_was = timelines_of(replay_modelled(question.run, question.cost, Edit().change(question)))
    edits = interventions(question)
    before, now = _before(question, as_was, edits), symptoms(as_was, window)
    moved = {
        name: (before[name], value)
        for name, value in now.items()
        if name in before
        and value > _MOVED * before[name]
        and value - before[name] > _MOVED_LEAST_MS
    }
    requests = len(_in(as_was, window))
    if not moved:
        return Explanation(requests=requests, moved={}, gains=(), tried=())
    judge = _Judge(question, as_was, moved)
    gains: list[Gain] = []
    for cause, edit in edits.items():
        progress(cause.value)
        gain = judge.gain(cause, edit)
        if gain is not None and gain.gain > NOISE_BAND:
            gains.append(gain)
    gains.sort(key=lambda gain: -gain.gain)
    interaction = None
    if len(gains) > 1:
        gains, interaction = judge.shares(gains, edits)
    return Explanation(
        requests=requests,
        moved=moved,
        gains=tuple(gains),
        tried=tuple(edits),
        interaction=interaction,
    )


def _before(
    question: Question, as_was: Sequence[RequestTimeline], edits: dict[Cause, Edit]
) -> Values:
    """Symptoms when all was well: before, or with the usual configuration."""
    if question.reference is not None:
        return symptoms(as_was, question.reference)
    usual = Edit()
    for cause in (Cause.KV, Cause.SLOTS, Cause.BUDGET, Cause.CHUNKS):
        usual = usual | edits.get(cause, Edit())
    facts = replay_modelled(question.run, question.cost, usual.change(question))
    return symptoms(timelines_of(facts), question.window)


class _Judge:
    """Compares replays with the one in which nothing was changed."""

    def __init__(
        self,
        question: Question,
        as_was: Sequence[RequestTimeline],
        moved: dict[str, tuple[float, float]],
    ) -> None:
        self._question = question
        self._as_was = as_was
        self._moved = moved

    def gain(self, cause: Cause, edit: Edit) -> Gain | None:
        """None when too few requests are left to compare."""
        spared = self._spared(edit)
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

    def shares(self, gains: list[Gain], edits: dict[Cause, Edit]) -> tuple[list[Gain], float]:
        """Shapley values of the leading causes on the time that requests took, or, if that did
        not move, on the leading symptom; and the interaction: what all of them remove beyond
        the sum of what each does."""
        leading = gains[:_JOINT_CAUSES]
        symptom = _WHOLE if _WHOLE in self._moved else leading[0].symptom
        worth: dict[frozenset[Cause], float] = {frozenset(): 0.0}
        for size in range(1, len(leading) + 1):
            for group in combinations([gain.cause for gain in leading], size):
                edit = Edit()
                for cause in group:
                    edit = edit | edits[cause]
                worth[frozenset(group)] = self._worth(edit, symptom)
        whole = frozenset(gain.cause for gain in leading)
        values = {cause: _shapley(cause, whole, worth) for cause in whole}
        shared = [msgspec.structs.replace(gain, shapley=values.get(gain.cause)) for gain in gains]
        interaction = worth[whole] - sum(worth[frozenset({cause})] for cause in whole)
        shared.sort(key=lambda gain: -(gain.shapley if gain.shapley is not None else -1.0))
        return shared, interaction

    def _worth(self, edit: Edit, symptom: str) -> float:
        spared = self._spared(edit)
        if spared is None:
            return 0.0
        was, now, _ = spared
        if symptom not in was or symptom not in now or not was[symptom]:
            return 0.0
        return (was[symptom] - now[symptom]) / was[symptom]

    def _spared(self, edit: Edit) -> tuple[Values, Values, int] | None:
        """Symptoms without and with the edit, and of how many requests; None for too few."""
        question = self._question
        facts = replay_modelled(question.run, question.cost, edit.change(question))
        was, now = finished_in_both(self._as_was, timelines_of(facts))
        count = len(_in(was, question.window))
        if count < _LEAST_REQUESTS:
            return None
        return symptoms(was, question.window), symptoms(now, question.window), count


def finished_in_both(
    was: Iterable[RequestTimeline], now: Iterable[RequestTimeline]
) -> tuple[list[RequestTimeline], list[RequestTimeline]]:
    """The same requests of two lives: one that is taken away in either, or ended, is spared
    nothing."""
    found = [
        {t.accepted.request_id: t for t in life if t.outcome is Outcome.FINISHED}
        for life in (was, now)
    ]
    both = sorted(found[0].keys() & found[1].keys())
    one, other = ([life[request_id] for request_id in both] for life in found)
    return one, other


def symptoms(timelines: Iterable[RequestTimeline], span: Span) -> Values:
    """In ms, of requests that came in a span and finished: mean and 95th percentile of TTFT,
    mean of each one's worst gap, of TPOT and of E2E. Empty for too few."""
    mine = _in(timelines, span)
    ttft = [t.ttft_ns for t in mine if t.ttft_ns is not None]
    if len(ttft) < _LEAST_REQUESTS:
        return {}
    worst = [gap for t in mine if (gap := _worst_gap_ns(t)) is not None]
    tpot = [t.tpot_ns for t in mine if t.tpot_ns is not None]
    values = {
        "ttft_mean": fmean(ttft),
        "ttft_p95": float(quantile(ttft, 0.95) or 0),
        _WHOLE: fmean(t.e2e_ns for t in mine),
    }
    if worst and tpot:
        values |= {"worst_gap_mean": fmean(worst), "tpot_mean": fmean(tpot)}
    return {name: value / 1e6 for name, value in values.items()}


def _in(timelines: Iterable[RequestTimeline], span: Span) -> list[RequestTimeline]:
    return [t for t in timelines if span.has(t.accepted.at_ns) and t.outcome is Outcome.FINISHED]


def _worst_gap_ns(timeline: RequestTimeline) -> int | None:
    return max((b - a for s in timeline.sequences for a, b in pairwise(s.token_ns)), default=None)


def timelines_of(facts: Iterable[Fact]) -> list[RequestTimeline]:
    """Of all requests that ended, as they ended."""
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
