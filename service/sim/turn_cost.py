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
in order: it is the noise of the machine (`service.sim.noise`), stalls and all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple

import numpy as np

from service.engine.plan import Plan
from service.sim.noise import Disturbance
from service.sim.recorded import NotReplayable, RecordedRun
from telemetry.engine_records import EngineIdled, StepRecorded
from telemetry.quantiles import median, quantile

_LEAST_TURNS = 30
# a turn that takes so many times longer than it should, or less, teaches nothing of what work costs
_LEAST_OUTLIER, _MOST_OUTLIER = 1.3, 2.0
_FAR = 6.0  # medians
_KINKS = (1, 2, 4, 8, 16, 32, 64, 128)
_RIDGE = 1e-4


class Load(NamedTuple):
    """What a step computes. `pairs` counts prompt tokens times what they attend to; `reshapes` says
    that the step before it had another number of tokens."""

    prompt_tokens: int = 0
    pairs: float = 0.0
    decode_tokens: int = 0
    decode_rows: int = 0
    context_tokens: int = 0
    sampled_rows: int = 0
    reshapes: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.decode_tokens

    def after(self, tokens: int) -> Load:
        """The same behind a step with so many tokens."""
        return self._replace(reshapes=self.tokens != tokens)


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
        found = sum(map(mul, self.coefficients, _columns(load, self.kinks)))
        if not load.prompt_tokens:
            found *= self.factors.get(load.decode_tokens, 1.0)
        return max(1000, int(found))


def load_of_plan(plan: Plan) -> Load:
    """What a plan asks for."""
    decode_rows = len(plan.decodes)
    prompt_tokens, pairs, sampled_rows = 0, 0.0, decode_rows
    for chunk in plan.prefills:
        tokens = len(chunk.tokens)
        prompt_tokens += tokens
        pairs += _pairs(tokens, chunk.start)
        sampled_rows += chunk.samples
    decode_tokens, context_tokens = decode_rows, 0
    for row in plan.decodes:
        decode_tokens += len(row.drafts)
        context_tokens += row.start
    return Load(prompt_tokens, pairs, decode_tokens, decode_rows, context_tokens, sampled_rows)


def load_of_step(step: StepRecorded) -> Load:
    """What a recorded step computed."""
    prompts = [row for row in step.rows if row.is_prefill]
    decodes = [row for row in step.rows if not row.is_prefill]
    return Load(
        prompt_tokens=sum(row.tokens for row in prompts),
        pairs=sum(_pairs(row.tokens, row.context_tokens) for row in prompts),
        decode_tokens=sum(row.tokens for row in decodes),
        decode_rows=len(decodes),
        context_tokens=sum(row.context_tokens for row in decodes),
        sampled_rows=len(decodes) + sum(row.sampled > 0 for row in prompts),
    )


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
    kinks = tuple(kink for kink in _KINKS if kink < widest)
    columns = np.array([_columns(load, kinks) for load in loads])
    decoded = np.array([0 if load.prompt_tokens else load.decode_tokens for load in loads])
    found, usual = _fit_usual(columns, computed_ns)
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


def _pairs(tokens: int, context: int) -> float:
    return tokens * (context + tokens / 2)


def _columns(load: Load, kinks: Sequence[int]) -> tuple[float, ...]:
    return (
        1.0,
        load.prompt_tokens,
        load.pairs,
        load.decode_tokens,
        *[max(0, load.decode_rows - kink) for kink in kinks],
        load.context_tokens,
        max(0, load.decode_rows - 1) if load.prompt_tokens else 0,
        float(load.decode_rows > 0),
        float(load.prompt_tokens > 0),
        load.sampled_rows - load.decode_rows,
        float(load.reshapes),
    )


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


def _fit_usual(columns: np.ndarray, spans_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The fit, and (turns,) bool of those that it was made to: all that are not far from it, by
    how far they usually are. On a quiet machine little is far; where it was slow for a while, what
    only that while computed would else be taken for its price."""
    found = _fit(columns, spans_ns)
    far = np.abs(np.log(spans_ns / (columns @ found).clip(1)))
    limit = np.clip(
        _FAR * (median(far.tolist()) or 0.0), np.log(_LEAST_OUTLIER), np.log(_MOST_OUTLIER)
    )
    usual = far < limit
    if _LEAST_TURNS <= usual.sum() < len(spans_ns):
        return _fit(columns[usual], spans_ns[usual]), usual
    return found, usual


def _fit(columns: np.ndarray, spans_ns: np.ndarray) -> np.ndarray:
    """Least squares of the relative error, with a ridge so light that it only decides what the
    data leave open. Coefficients may be negative: kinks bend both ways."""
    weighted = columns / spans_ns[:, None]
    scale = np.abs(weighted).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = weighted / scale
    ridge = _RIDGE * np.sqrt(len(spans_ns)) * np.eye(columns.shape[1])
    target = np.concatenate([np.ones(len(spans_ns)), np.zeros(columns.shape[1])])
    solution, *_ = np.linalg.lstsq(np.vstack([scaled, ridge]), target, rcond=None)
    found: np.ndarray = solution / scale
    return found
