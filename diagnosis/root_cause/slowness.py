"""Noise filters: what made turns of the loop long, removed from the noise of a replay.

A replay adds to the fitted cost of each step the noise that was recorded: a ratio to its cost, and
the gap before it (`lab.replay.noise`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from statistics import fmean

from diagnosis.attribution.thresholds import LEAST_QUEUE_SHARE, SLOW
from diagnosis.root_cause.question import Question
from diagnosis.root_cause.thresholds import LEAST_RATIO, SAMPLE_MARGIN, STALL_FLOOR_NS
from diagnosis.thresholds import LONGEST_QUANTILE
from lab.replay.noise import Disturbance
from telemetry.facts.engine_records import StepRecorded
from telemetry.numbers.quantiles import quantile_sorted

Disturbances = tuple[Disturbance, ...]
NoiseFilter = Callable[[Disturbances], Disturbances]


def without_stalls(question: Question) -> NoiseFilter | None:
    """Gaps between steps no longer than the reference's 99th percentile."""
    window, reference = question.window, question.reference
    if reference is None:
        return None
    baseline = sorted(o.gap_ns for o in question.cost.disturbances if reference.has(o.begin_ns))
    top_ns = quantile_sorted(baseline, LONGEST_QUANTILE)
    if top_ns is None:
        return None
    worst_ns = max(
        (one.gap_ns for one in question.cost.disturbances if window.has(one.begin_ns)), default=0
    )
    if worst_ns < top_ns + STALL_FLOOR_NS:
        return None

    def keep(known: Disturbances) -> Disturbances:
        return tuple(
            one._replace(gap_ns=min(one.gap_ns, top_ns)) if window.has(one.begin_ns) else one
            for one in known
        )

    return keep


def without_residual(question: Question) -> NoiseFilter | None:
    """Ratios to the fitted cost mapped by rank onto those of the reference (quantile mapping),
    since what makes some steps three times longer leaves others as they are."""
    window, reference = question.window, question.reference
    if reference is None:
        return None
    before = [o.ratio for o in question.cost.disturbances if reference.has(o.begin_ns)]
    now = [o.ratio for o in question.cost.disturbances if window.has(o.begin_ns)]
    if not before or not now:
        return None
    if fmean(now) < SLOW * fmean(before):
        return None
    ranked, baseline = sorted(now), sorted(before)

    def as_before(ratio: float) -> float:
        place = bisect_left(ranked, ratio) * len(baseline) // len(ranked)
        return min(ratio, baseline[min(len(baseline) - 1, place)])

    def keep(known: Disturbances) -> Disturbances:
        return tuple(
            one._replace(ratio=as_before(one.ratio)) if window.has(one.begin_ns) else one
            for one in known
        )

    return keep


def without_masks(question: Question) -> NoiseFilter | None:
    """Masks take no time."""
    return _without_spent(question, lambda step: step.mask_ns)


def without_samples(question: Question) -> NoiseFilter | None:
    """Sampling takes no longer per row than in the reference."""
    reference = question.reference
    if reference is None:
        return None
    steps = [s for s in question.run.steps.values() if reference.has(s.begin_ns)]
    baseline = [_sampled_ns(step) / max(1, len(step.rows)) for step in steps]
    if not baseline:
        return None
    each_ns = fmean(baseline)
    return _without_spent(
        question,
        lambda step: max(0, _sampled_ns(step) - int(SAMPLE_MARGIN * each_ns * len(step.rows))),
    )


def _sampled_ns(step: StepRecorded) -> int:
    return max(0, step.collected_ns - step.sample_ns - step.mask_ns)


def _without_spent(
    question: Question, spent_ns: Callable[[StepRecorded], int]
) -> NoiseFilter | None:
    """Turns of the window without what their steps spent on one part; None where that is next to
    nothing."""
    window = question.window
    steps = [step for step in question.run.steps.values() if window.has(step.begin_ns)]
    spent = {step.step_id: spent_ns(step) for step in steps}
    total_ns = sum(step.committed_ns - step.begin_ns for step in steps)
    if not total_ns or sum(spent.values()) < LEAST_QUEUE_SHARE * total_ns:
        return None

    def keep(known: Disturbances) -> Disturbances:
        return tuple(_shorter(one, spent.get(one.step_id, 0)) for one in known)

    return keep


def _shorter(one: Disturbance, by_ns: int) -> Disturbance:
    if not by_ns or not one.cost_ns:
        return one
    return one._replace(ratio=max(LEAST_RATIO, one.ratio - by_ns / one.cost_ns))
