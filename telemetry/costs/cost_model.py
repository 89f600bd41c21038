"""The cost of a step: one set of terms, one way to fit them, five named presets.

    T = base + sum of coefficient * term

The terms are functions of what a step computes (`telemetry.costs.step_load`). A preset says which
terms a model has and how they are fitted. The presets differ because their uses differ:

    BUDGET    the scheduler's token budget. Predicts whole steps for any plan, so it has few terms,
              none negative, all known before the step.
    LEDGER    divides the forward pass of a recorded step among its rows. It has an attention term
              for prompts, and an interaction term of prompts and decodes.
    BASELINE  the normal forward pass, for the diagnosis. It has a step term at each batch size at
              which kernels begin another tile. Unbiased: its total is the measured total.
    AROUND    its companion for sampling and host work, which depend on the rows alone.
    REPLAY    whole iterations, as exact as possible for a simulated queue. The slope may change
              either way at each knot in the number of rows, so coefficients may be negative. Where
              few steps say what a term costs, it is what the plain terms say.

All fits are least squares of the relative error: an error in a short step matters to a latency
target as much as one in a long step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

import numpy as np

from telemetry.costs.step_load import StepLoad
from telemetry.numbers.quantiles import median

# numbers that decide what a fit says are annotated with unit, meaning and reason
RIDGE: Annotated[
    float, "of its time", "a step is off by so much in the fit of a replay, at least",
    "by hand: far below what any machine repeats, so that the plain cost counts a little",
] = 1e-3  # fmt: skip
PLAIN_OFF: Annotated[
    float, "of itself", "a plain coefficient may be off by so much", "by hand: as pace differs"
] = 1 / 3
OUTLIER: Annotated[
    float, "of its prediction", "a step that took more is left out of the fit",
    "by hand: between the noise of a machine and a stall",
] = 1.5  # fmt: skip
FAR: Annotated[
    float, "median distances from the fit", "the same in the fit of a replay",
    "by hand: of normal errors one in 20,000 is as far",
] = 6.0  # fmt: skip
LEAST_OUTLIER: Annotated[
    float, "of its prediction", "least bound by FAR", "by hand: on a quiet machine nothing is left"
] = 1.3
MOST_OUTLIER: Annotated[
    float, "of its prediction", "largest bound by FAR", "by hand, as STALL of a replay"
] = 2.0
LEAST_FITTED: Annotated[
    int, "steps", "fewest for a fit", "by hand: more than the largest fit has terms"
] = 30


class Term(StrEnum):
    """A column of a model; ROWS_BEYOND and ROW_STEPS have a column for each knot."""

    PROMPT_TOKENS = "prompt_tokens"
    PAIRS = "pairs"
    DECODE_TOKENS = "decode_tokens"
    DECODE_ROWS = "decode_rows"
    CONTEXT_TOKENS = "context_tokens"
    INTERACTION = "interaction"  # prompt tokens times decode tokens
    SAMPLED_ROWS = "sampled_rows"
    SAMPLED_PROMPTS = "sampled_prompts"
    ROWS_BEYOND = "rows_beyond"  # decode rows above the knot, else 0
    ROW_STEPS = "row_steps"  # step term: 1 with more decode rows than the knot
    ROWS_BESIDE = "rows_beside"  # decode rows from the second on, where there is a prompt
    HAS_DECODES = "has_decodes"
    HAS_PROMPTS = "has_prompts"
    RESHAPES = "reshapes"
    SCORED_ROWS = "scored_rows"


_VALUES: Mapping[Term, Callable[[StepLoad], float]] = {
    Term.PROMPT_TOKENS: lambda load: load.prompt_tokens,
    Term.PAIRS: lambda load: load.pairs,
    Term.DECODE_TOKENS: lambda load: load.decode_tokens,
    Term.DECODE_ROWS: lambda load: load.decode_rows,
    Term.CONTEXT_TOKENS: lambda load: load.context_tokens,
    Term.INTERACTION: lambda load: load.interaction,
    Term.SAMPLED_ROWS: lambda load: load.sampled_rows,
    Term.SAMPLED_PROMPTS: lambda load: load.sampled_rows - load.decode_rows,
    Term.ROWS_BESIDE: lambda load: max(0, load.decode_rows - 1) if load.prompt_tokens else 0,
    Term.HAS_DECODES: lambda load: float(load.decode_rows > 0),
    Term.HAS_PROMPTS: lambda load: float(load.prompt_tokens > 0),
    Term.RESHAPES: lambda load: float(load.reshapes),
    Term.SCORED_ROWS: lambda load: load.scored_rows,
}
_KNOTTED: Mapping[Term, Callable[[StepLoad, int], float]] = {
    Term.ROWS_BEYOND: lambda load, knot: max(0, load.decode_rows - knot),
    Term.ROW_STEPS: lambda load, knot: float(load.decode_rows > knot),
}

_PRIOR_TERMS = (
    Term.PROMPT_TOKENS,
    Term.PAIRS,
    Term.DECODE_TOKENS,
    Term.CONTEXT_TOKENS,
    Term.HAS_PROMPTS,
)
"""Terms that cost something on any machine: they tell what was not seen from what was."""

InlierFilter = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _not_slow(spans_ns: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    return np.asarray(spans_ns <= OUTLIER * predicted)


def _near_fit(spans_ns: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    within = (spans_ns <= OUTLIER * predicted) & (spans_ns * OUTLIER >= predicted)
    return np.asarray(within)


def _within_typical_error(spans_ns: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Steps within FAR times the median distance from the fit. On a quiet machine the bound is
    tight, so that a slow period does not change the cost of the loads that only it had."""
    far = np.abs(np.log(spans_ns / predicted.clip(1)))
    middle = _typical_error(spans_ns, predicted)
    limit = np.clip(FAR * middle, np.log(LEAST_OUTLIER), np.log(MOST_OUTLIER))
    return np.asarray(far < limit)


def _typical_error(spans_ns: np.ndarray, predicted: np.ndarray) -> float:
    """The median, of the logarithm."""
    return median(np.abs(np.log(spans_ns / predicted.clip(1))).tolist()) or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The terms of a model and how it is fitted.

    Coefficients may be negative only if `signed`. The model is fitted to all steps, and again to
    those that `inliers` selects by the first fit, if these are at least `least_steps`. If
    `unbiased`, coefficients are scaled so that the predicted total is the measured one: a queue
    adds small biases up.
    """

    terms: tuple[Term, ...]
    knots: tuple[int, ...] = ()
    signed: bool = False
    inliers: InlierFilter | None = None
    least_steps: int = 0
    unbiased: bool = False

    def places(self, terms: Sequence[Term], knots: int) -> list[int]:
        """The columns of the base and of such terms as have one column, where each other term has
        as many as there are `knots`."""
        found, place = [0], 1
        for term in self.terms:
            found += [place] if term in terms else []
            place += 1 if term in _VALUES else knots
        return found

    def columns(self, load: StepLoad, knots: Sequence[int] | None = None) -> list[float]:
        """The row of the design matrix: 1 for the base, then the value of each term. `knots`
        replace the preset's own."""
        found: list[float] = [1.0]
        for term in self.terms:
            value = _VALUES.get(term)
            if value is not None:
                found.append(value(load))
            else:
                knotted = _KNOTTED[term]
                bends = self.knots if knots is None else knots
                found.extend([knotted(load, knot) for knot in bends])
        return found


BUDGET = Preset(
    terms=(
        Term.PROMPT_TOKENS,
        Term.PAIRS,
        Term.DECODE_ROWS,
        Term.CONTEXT_TOKENS,
        Term.HAS_PROMPTS,
    ),
    inliers=_near_fit,
    least_steps=LEAST_FITTED,
)
LEDGER = Preset(
    terms=(
        Term.PROMPT_TOKENS,
        Term.PAIRS,
        Term.DECODE_TOKENS,
        Term.CONTEXT_TOKENS,
        Term.INTERACTION,
    ),
    inliers=_not_slow,
    least_steps=12,
)
BASELINE = Preset(
    terms=(*LEDGER.terms, Term.SAMPLED_ROWS, Term.ROW_STEPS),
    knots=(1, 2, 4, 8, 16, 32, 64),
    inliers=_near_fit,
    least_steps=LEAST_FITTED,
    unbiased=True,
)
AROUND = Preset(
    terms=(Term.SAMPLED_ROWS,), inliers=_near_fit, least_steps=LEAST_FITTED, unbiased=True
)
REPLAY = Preset(
    terms=(
        Term.PROMPT_TOKENS,
        Term.PAIRS,
        Term.DECODE_TOKENS,
        Term.ROWS_BEYOND,
        Term.CONTEXT_TOKENS,
        Term.ROWS_BESIDE,
        Term.HAS_DECODES,
        Term.HAS_PROMPTS,
        Term.SAMPLED_PROMPTS,
        Term.RESHAPES,
        Term.SCORED_ROWS,
    ),
    knots=(1, 2, 4, 8, 16, 32, 64, 128),
    signed=True,
    inliers=_within_typical_error,
    least_steps=LEAST_FITTED,
)


class Fit(NamedTuple):
    """`coefficients` in the order of a preset's columns; `inliers` (steps,) bool, the steps that
    were fitted to."""

    coefficients: np.ndarray
    inliers: np.ndarray


def fit(
    preset: Preset,
    columns: np.ndarray,
    spans_ns: np.ndarray,
    known: tuple[np.ndarray, np.ndarray] | None = None,
) -> Fit:
    """Fit a preset. `columns` (steps, 1 + terms) are rows of `Preset.columns`; `spans_ns`
    (steps,). `known` are columns and spans of steps that were measured before: a signed fit takes
    from them what the steps do not say."""
    columns, spans = columns.astype(np.float64), spans_ns.astype(np.float64)
    plain = _prior(preset, columns, spans, known) if preset.signed else np.zeros(columns.shape[1])

    def solve(some: np.ndarray, took: np.ndarray) -> np.ndarray:
        return _fit_near_prior(plain, some, took) if preset.signed else _non_negative(some, took)

    found = solve(columns, spans)
    inliers = np.ones(len(spans), dtype=bool)
    if preset.inliers is not None:
        near = preset.inliers(spans, columns @ found)
        if preset.least_steps <= near.sum() < len(spans):
            inliers, found = near, solve(columns[near], spans[near])
    if preset.unbiased:
        total = float((columns @ found).sum())
        if total > 0:
            found = found * (float(spans.sum()) / total)
    return Fit(found, inliers)


def _prior(
    preset: Preset,
    columns: np.ndarray,
    spans: np.ndarray,
    known: tuple[np.ndarray, np.ndarray] | None,
) -> np.ndarray:
    """(1 + terms,) non-negative coefficients of `_PRIOR_TERMS`, 0 for the others; `known` steps are
    scaled to the pace of these."""
    knotted = sum(term in _KNOTTED for term in preset.terms)
    knots = (columns.shape[1] - 1 - len(preset.terms) + knotted) // max(1, knotted)
    places = preset.places(_PRIOR_TERMS, knots)
    rows, took = columns[:, places], spans
    if known is not None and len(known[1]):
        before = known[0].astype(np.float64)[:, places]
        told = rows @ _non_negative(before, known[1].astype(np.float64))
        pace = median((spans / told.clip(1)).tolist()) or 1.0
        rows, took = np.vstack([rows, before]), np.concatenate([spans, known[1] * pace])
    found = np.zeros(columns.shape[1])
    found[places] = _non_negative(rows, took)
    return found


def _non_negative(columns: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Coefficients, all at least 0: the most negative one is removed until none is negative."""
    weighted = columns / spans[:, None]
    target = np.ones(len(spans))
    scale = np.abs(weighted).max(axis=0)
    kept = [index for index in range(columns.shape[1]) if not index or np.ptp(columns[:, index])]
    found = np.zeros(columns.shape[1])
    while kept:
        solution, *_ = np.linalg.lstsq(weighted[:, kept] / scale[kept], target, rcond=None)
        if (solution >= 0).all():
            found[kept] = solution / scale[kept]
            break
        kept.pop(int(np.argmin(solution)))
    return found


def _fit_near_prior(prior: np.ndarray, columns: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Ridge regression of the relative error, of either sign, shrunk towards `prior`. Its strength
    is the typical relative error of the steps, at least RIDGE."""
    found = _ridge(prior, columns, spans, RIDGE)
    off = _typical_error(spans, columns @ found)
    return found if off <= RIDGE else _ridge(prior, columns, spans, off)


def _ridge(
    prior: np.ndarray, columns: np.ndarray, spans: np.ndarray, step_off: float
) -> np.ndarray:
    """The scale of a coefficient is PLAIN_OFF of its prior; without one, what alone makes a whole
    step. `step_off` is the relative error of a step."""
    weighted = columns / spans[:, None]
    most = np.abs(weighted).max(axis=0)
    unit = np.where(prior > 0, PLAIN_OFF * prior, 1 / np.where(most > 0, most, 1.0))
    ridge = step_off * np.eye(columns.shape[1])
    target = np.concatenate([1 - weighted @ prior, np.zeros(columns.shape[1])])
    solution, *_ = np.linalg.lstsq(np.vstack([weighted * unit, ridge]), target, rcond=None)
    found: np.ndarray = prior + solution * unit
    return found
