"""What a turn of the engine's loop takes, fitted to turns that were recorded.

    T = base + prompt tokens + pairs + decode rows, in pieces + context + rows beside prompts
        + samples + reshape

A *pair* is a prompt token and one that it attends to. The cost of decode rows has a kink wherever
another row began to matter in what was seen (1, 2, 4, 8, ... rows), because small batches are
read-bound and large ones are not. Beside a prompt each row from the second on differs by so much: a
step is not read-bound then, and a row is one token more. Kernels take rows by threes, by sixes or
by whatever fits their registers, which no kinks follow: so steps that only decode differ by a
factor for every number of tokens of which enough was seen. A step *reshapes* when it has another
number of tokens than the one before it: runtimes that infer shapes as they go prepare all layers
anew. Fitted is the span from one turn's begin to the commit of its step, apart from the span from
there to the next turn's begin, by least squares of the relative error; then the coefficients are
scaled so that the mean error is none, which matters more to a replay than any single step: a queue
adds biases up. What masks took is left out of the fit but not of the mean: it depends on whose rows
they are and on nothing that a load says.

What the fit leaves, the ratio of each turn to what was foretold and the gap behind it, is kept
in order: it is the noise of the machine (`lab.replay.noise`), stalls and all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple

import numpy as np

from lab.replay.noise import Disturbance
from lab.replay.recorded import NotReplayable, RecordedRun
from telemetry.costs.cost_model import REPLAY, fit
from telemetry.costs.step_load import Load, load_of_step
from telemetry.facts.engine_records import EngineIdled
from telemetry.numbers.quantiles import median, quantile

_LEAST_TURNS = REPLAY.least_steps


@dataclass(frozen=True, slots=True)
class TurnCost:
    """The fit. `gap_ns` is from a commit to the next begin while there is work; `wake_ns` from
    a submission at the gateway to the begin of the turn that takes it, when all is idle.
    `disturbances` are what turns took beyond it, in the order of time."""

    coefficients: tuple[float, ...]
    kinks: tuple[int, ...]
    factors: Mapping[int, float]  # by how many tokens a step that only decodes computes
    gap_ns: int
    wake_ns: int
    turns: int
    mean_error: float
    disturbances: tuple[Disturbance, ...] = field(repr=False)

    def step_ns(self, load: Load) -> int:
        """From begin to commit, without noise."""
        found = sum(map(mul, self.coefficients, REPLAY.columns(load, self.kinks)))
        if not load.prompt_tokens:
            found *= self.factors.get(load.decode_tokens, 1.0)
        return max(1000, int(found))


def fit_turns(
    runs: Sequence[RecordedRun], within: Callable[[int], bool] = lambda begin_ns: True
) -> TurnCost:
    """Fit to all steps of the runs that were computed and began at a time that `within` likes.
    Raises NotReplayable for too few."""
    turns = [turn for run in runs for turn in _turns_of(run) if within(turn.begin_ns)]
    if len(turns) < _LEAST_TURNS:
        raise NotReplayable(f"{len(turns)} steps were recorded; a cost needs {_LEAST_TURNS}")
    loads = [turn.load for turn in turns]
    spans_ns = np.array([turn.span_ns for turn in turns], dtype=np.float64)
    computed_ns = spans_ns - np.array([turn.mask_ns for turn in turns])
    widest = max(load.decode_rows for load in loads)
    kinks = tuple(kink for kink in REPLAY.knots if kink < widest)
    columns = np.array([REPLAY.columns(load, kinks) for load in loads])
    decoded = np.array([0 if load.prompt_tokens else load.decode_tokens for load in loads])
    found, usual = fit(REPLAY, columns, computed_ns)
    factors = _factors(decoded[usual], computed_ns[usual], columns[usual] @ found)
    differs = np.array([factors.get(tokens, 1.0) for tokens in decoded.tolist()])
    found *= spans_ns[usual].sum() / (columns @ found * differs)[usual].sum()
    foretold = (columns @ found * differs).clip(1000)
    ratios = spans_ns / foretold
    gap_ns = median(turn.gap_ns for turn in turns if turn.gap_ns is not None) or 0
    return TurnCost(
        coefficients=tuple(found.tolist()),
        kinks=kinks,
        factors=factors,
        gap_ns=gap_ns,
        wake_ns=_wake_ns(runs),
        turns=len(turns),
        mean_error=float(np.abs(ratios[usual] - 1).mean()),
        disturbances=tuple(
            Disturbance(
                turn.begin_ns, int(cost_ns), ratio, gap_ns if turn.gap_ns is None else turn.gap_ns
            )
            for turn, cost_ns, ratio in zip(turns, foretold.tolist(), ratios.tolist(), strict=True)
        ),
    )


class _Turn(NamedTuple):
    """A step's begin, load and span to its commit, what of that went to masks, and the gap to the
    next begin if that followed: not where the engine went idle, be it that all who run are held
    by their readers."""

    begin_ns: int
    load: Load
    span_ns: int
    mask_ns: int
    gap_ns: int | None


def _turns_of(run: RecordedRun) -> list[_Turn]:
    """Where steps overlap, a step's span begins with the commit of the one before."""
    found: list[_Turn] = []
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
        mask_ns = min(step.mask_ns, span_ns // 2)  # where steps overlap it may be of the other's
        found.append(_Turn(begin_ns, load, span_ns, mask_ns, gap_ns))
    return found


def _wake_ns(runs: Sequence[RecordedRun]) -> int:
    """What passes between the gateway's submission and the turn that takes it up, at best: the
    rest of it is the turn before."""
    waits = (
        sequence.entry.at_ns - sequence.submitted_ns
        for run in runs
        for sequence in run.sequences.values()
        if sequence.submitted_ns is not None
    )
    return max(0, quantile(waits, 0.1) or 0)


def _factors(decoded: np.ndarray, spans_ns: np.ndarray, foretold: np.ndarray) -> dict[int, float]:
    """What turns took over what was foretold, for every number of tokens that enough of them
    decoded. `decoded` is 0 where a prompt was computed, too."""
    counts, groups = np.unique(decoded, return_inverse=True)
    enough = np.bincount(groups) >= _LEAST_TURNS
    took = np.bincount(groups, spans_ns) / np.bincount(groups, foretold)
    return {
        int(tokens): float(factor)
        for tokens, factor, known in zip(counts, took, enough, strict=True)
        if known and tokens
    }
