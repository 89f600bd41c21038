"""What made turns of the loop long, taken out of the noise that a replay goes by."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from statistics import fmean

from diagnosis.root_cause.question import Question
from lab.replay.noise import Disturbance
from telemetry.facts.engine_records import StepRecorded
from telemetry.numbers.quantiles import quantile_sorted

# a difference smaller than this is none
_RESIDUAL_FLOOR = 1.08
_STALL_FLOOR_NS = 20_000_000
_SPENT_FLOOR = 0.03

Disturbances = tuple[Disturbance, ...]
Calm = Callable[[Disturbances], Disturbances]


def without_stalls(question: Question) -> Calm | None:
    """No gap between steps longer than the reference's."""
    window, reference = question.window, question.reference
    if reference is None:
        return None
    usual = sorted(o.gap_ns for o in question.cost.disturbances if reference.has(o.begin_ns))
    top_ns = quantile_sorted(usual, 0.99)
    if top_ns is None:
        return None
    worst_ns = max(
        (one.gap_ns for one in question.cost.disturbances if window.has(one.begin_ns)), default=0
    )
    if worst_ns < top_ns + _STALL_FLOOR_NS:
        return None

    def calm(known: Disturbances) -> Disturbances:
        return tuple(
            one._replace(gap_ns=min(one.gap_ns, top_ns)) if window.has(one.begin_ns) else one
            for one in known
        )

    return calm


def without_residual(question: Question) -> Calm | None:
    """Steps of the window as long, for what they compute, as those of the reference that are as
    long among theirs: what makes some of them three times longer spares others altogether."""
    window, reference = question.window, question.reference
    if reference is None:
        return None
    before = [o.ratio for o in question.cost.disturbances if reference.has(o.begin_ns)]
    now = [o.ratio for o in question.cost.disturbances if window.has(o.begin_ns)]
    if not before or not now:
        return None
    if fmean(now) < _RESIDUAL_FLOOR * fmean(before):
        return None
    ranked, usual = sorted(now), sorted(before)

    def as_usual(ratio: float) -> float:
        place = bisect_left(ranked, ratio) * len(usual) // len(ranked)
        return min(ratio, usual[min(len(usual) - 1, place)])

    def calm(known: Disturbances) -> Disturbances:
        return tuple(
            one._replace(ratio=as_usual(one.ratio)) if window.has(one.begin_ns) else one
            for one in known
        )

    return calm


def without_masks(question: Question) -> Calm | None:
    """Masks take no time."""
    return _without_spent(question, lambda step: step.mask_ns)


def without_samples(question: Question) -> Calm | None:
    """Choosing tokens takes no longer, for each row, than in the reference."""
    reference = question.reference
    if reference is None:
        return None
    steps = [s for s in question.run.steps.values() if reference.has(s.begin_ns)]
    usual = [_sampled_ns(step) / max(1, len(step.rows)) for step in steps]
    if not usual:
        return None
    each_ns = fmean(usual)
    return _without_spent(
        question, lambda step: max(0, _sampled_ns(step) - int(1.3 * each_ns * len(step.rows)))
    )


def _sampled_ns(step: StepRecorded) -> int:
    return max(0, step.collected_ns - step.sample_ns - step.mask_ns)


def _without_spent(question: Question, spent_ns: Callable[[StepRecorded], int]) -> Calm | None:
    """Turns of the window shorter by what their steps spent on one thing; None for next to
    nothing."""
    window = question.window
    steps = [step for step in question.run.steps.values() if window.has(step.begin_ns)]
    spent = {step.begin_ns: spent_ns(step) for step in steps}
    total_ns = sum(step.committed_ns - step.begin_ns for step in steps)
    if not total_ns or sum(spent.values()) < _SPENT_FLOOR * total_ns:
        return None

    def calm(known: Disturbances) -> Disturbances:
        return tuple(_shorter(one, spent.get(one.begin_ns, 0)) for one in known)

    return calm


def _shorter(one: Disturbance, by_ns: int) -> Disturbance:
    if not by_ns or not one.cost_ns:
        return one
    return one._replace(ratio=max(0.05, one.ratio - by_ns / one.cost_ns))
