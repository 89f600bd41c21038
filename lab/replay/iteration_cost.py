"""The duration of an iteration of the engine loop, fitted to recorded iterations.

    T = base + prompt tokens + pairs + decode rows, in pieces + context + rows beside prompts
        + samples + reshape

A *pair* is a prompt token and one that it attends to. The cost of decode rows is piecewise linear
with knots at 1, 2, 4, 8, ... rows, as far as batches were seen, because small batches are memory
bound and large ones are not. Beside a prompt each row from the second on has a cost of its own: a
step with a prompt is not memory bound, and a row is one token more. Kernels take rows by threes,
by sixes or by what fits their registers, which no knots follow: so steps that only decode have a
factor for every number of tokens that was seen often enough. A step *reshapes* when it has another
number of tokens than the one before it: runtimes that infer shapes as they go prepare all layers
again. The span from an iteration's begin to the commit of its step is fitted by least squares of
the relative error, near a plain fit that knows the warm-up, too (`telemetry.costs.cost_model`); the
gap from there to the next begin is measured apart. Then the coefficients are scaled so that the
mean error is 0, which matters more to a replay than any single step, because a queue adds errors
up. Mask time is left out of the fit but not of the mean: it depends on which sequences are
constrained, not on the load.

The rest, the ratio of each iteration to its prediction and the gap after it, is kept in order: it
is the noise of the machine (`lab.replay.noise`), stalls included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Annotated, NamedTuple

import numpy as np

from lab.replay.noise import Disturbance
from lab.replay.recorded import NotReplayable, RecordedRun
from telemetry.costs.cost_model import REPLAY, fit
from telemetry.costs.step_load import StepLoad, load_of_step, load_of_warm_up
from telemetry.facts.engine_records import EngineIdled
from telemetry.numbers.quantiles import median, quantile

LEAST_ITERATIONS: Annotated[
    int, "iterations", "fewest for a cost of iterations, and for the factor of a batch size",
    "those of the fit (telemetry.costs): more than it has terms",
] = REPLAY.least_steps  # fmt: skip
WAKE_QUANTILE: Annotated[
    float, "quantile", "of the waits at an idle engine: the time that it needs to wake",
    "by hand, near 0: longer waits include the iteration before",
] = 0.1  # fmt: skip


@dataclass(frozen=True, slots=True)
class IterationCost:
    """The fit. `gap_ns` is from a commit to the next begin while there is work; `wake_ns` from
    a submission at the gateway to the begin of the iteration that takes it, when the engine is
    idle. `factors` are for steps that only decode, by their number of tokens. `disturbances` are
    the ratios and gaps of the recorded iterations, in the order of time."""

    coefficients: tuple[float, ...]
    knots: tuple[int, ...]
    factors: Mapping[int, float]  # by how many tokens a step that only decodes computes
    gap_ns: int
    wake_ns: int
    iterations: int
    mean_error: float
    disturbances: tuple[Disturbance, ...] = field(repr=False)

    def step_ns(self, load: StepLoad) -> int:
        """Predicted ns from begin to commit, without noise; at least 1000."""
        found = sum(map(mul, self.coefficients, REPLAY.columns(load, self.knots)))
        if not load.prompt_tokens:
            found *= self.factors.get(load.decode_tokens, 1.0)
        return max(1000, int(found))


def fit_iterations(
    runs: Sequence[RecordedRun], within: Callable[[int], bool] = lambda begin_ns: True
) -> IterationCost:
    """Fit to all steps of the runs that did not fail and began at a time for which `within` is
    true. Raises NotReplayable for too few."""
    seen = [one for run in runs for one in _iterations_of(run) if within(one.begin_ns)]
    if len(seen) < LEAST_ITERATIONS:
        raise NotReplayable(f"{len(seen)} steps were recorded; a cost needs {LEAST_ITERATIONS}")
    loads = [one.load for one in seen]
    spans_ns = np.array([one.span_ns for one in seen], dtype=np.float64)
    computed_ns = spans_ns - np.array([one.mask_ns for one in seen])
    widest = max(load.decode_rows for load in loads)
    knots = tuple(knot for knot in REPLAY.knots if knot < widest)
    columns = np.array([REPLAY.columns(load, knots) for load in loads])
    decoded = np.array([0 if load.prompt_tokens else load.decode_tokens for load in loads])
    found, inliers = fit(REPLAY, columns, computed_ns, _warm_up(runs, knots))
    factors = _factors(decoded[inliers], computed_ns[inliers], columns[inliers] @ found)
    differs = np.array([factors.get(tokens, 1.0) for tokens in decoded.tolist()])
    found *= spans_ns[inliers].sum() / (columns @ found * differs)[inliers].sum()
    predicted = (columns @ found * differs).clip(1000)
    ratios = spans_ns / predicted
    gap_ns = median(one.gap_ns for one in seen if one.gap_ns is not None) or 0
    return IterationCost(
        coefficients=tuple(found.tolist()),
        knots=knots,
        factors=factors,
        gap_ns=gap_ns,
        wake_ns=_wake_ns(runs),
        iterations=len(seen),
        mean_error=float(np.abs(ratios[inliers] - 1).mean()),
        disturbances=tuple(
            Disturbance(
                one.begin_ns,
                int(cost_ns),
                ratio,
                gap_ns if one.gap_ns is None else one.gap_ns,
                one.step_id,
            )
            for one, cost_ns, ratio in zip(seen, predicted.tolist(), ratios.tolist(), strict=True)
        ),
    )


def _warm_up(runs: Sequence[RecordedRun], knots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Columns and spans of the steps that the engines measured before they served."""
    steps = [step for run in runs for step in run.started.warm_up]
    columns = [REPLAY.columns(load_of_warm_up(step), knots) for step in steps]
    return np.array(columns), np.array([step.span_ns for step in steps])


class _Iteration(NamedTuple):
    """A step's number, its begin, load, span to its commit, mask time within it, and gap to the
    next begin; None where the engine went idle in between."""

    step_id: int
    begin_ns: int
    load: StepLoad
    span_ns: int
    mask_ns: int
    gap_ns: int | None


def _iterations_of(run: RecordedRun) -> list[_Iteration]:
    """Iterations of a run. Where steps overlap, a span begins at the commit of the step before."""
    found: list[_Iteration] = []
    idled_ns = sorted(fact.at_ns for fact in run.others if isinstance(fact, EngineIdled))
    tokens = 0  # of the step before
    steps = sorted(run.steps.values(), key=lambda step: step.committed_ns)
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        before_ns = found[-1].begin_ns + found[-1].span_ns if found and run.depth > 1 else 0
        begin_ns = max(step.begin_ns, before_ns)
        span_ns = step.committed_ns - begin_ns
        load = load_of_step(step).after(tokens)
        tokens = load.tokens
        if span_ns <= 0 or step.step_id in run.failed:
            continue
        gap_ns = None
        if following is not None and following.begin_ns > step.committed_ns:
            idled = bisect_left(idled_ns, step.committed_ns)
            if idled == len(idled_ns) or idled_ns[idled] >= following.begin_ns:
                gap_ns = following.begin_ns - step.committed_ns
        mask_ns = min(step.mask_ns, span_ns // 2)  # where steps overlap it may be the other step's
        found.append(_Iteration(step.step_id, begin_ns, load, span_ns, mask_ns, gap_ns))
    return found


def _wake_ns(runs: Sequence[RecordedRun]) -> int:
    """ns from the gateway's submission to the iteration that takes it when the engine is idle: the
    first decile, because longer waits include the iteration before."""
    waits = (
        sequence.entry.at_ns - sequence.submitted_ns
        for run in runs
        for sequence in run.sequences.values()
        if sequence.submitted_ns is not None
    )
    return max(0, quantile(waits, WAKE_QUANTILE) or 0)


def _factors(decoded: np.ndarray, spans_ns: np.ndarray, predicted: np.ndarray) -> dict[int, float]:
    """Measured over predicted time of steps that only decode, by their number of tokens, where
    enough were seen. `decoded` is 0 for a step with a prompt."""
    counts, groups = np.unique(decoded, return_inverse=True)
    enough = np.bincount(groups) >= LEAST_ITERATIONS
    took = np.bincount(groups, spans_ns) / np.bincount(groups, predicted)
    return {
        int(tokens): float(factor)
        for tokens, factor, known in zip(counts, took, enough, strict=True)
        if known and tokens
    }
