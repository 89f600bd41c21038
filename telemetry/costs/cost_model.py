"""The cost of a step: one set of terms, one way to fit them, five named presets.

    T = base + sum of coefficient * term

Terms are defined here, on what a step computes (`telemetry.costs.step_load`). A preset says which
of them a model has and how they are fitted; presets differ because their users do:

    BUDGET    the scheduler's token budget. Whole steps, foretold in the engine for any plan, so
              few terms, none negative, none of them unknown before the step.
    LEDGER    divides the forward pass of a step that has happened among its rows. Prompts have
              their attention term, and what prompts and decodes cost each other is a term.
    BASELINE  what is usual, for the diagnosis. The forward pass with a stair for each size of
              batch at which kernels begin another tile; in total as long as what was measured.
    AROUND    its companion for sampling and for the host's part, which depend on rows alone.
    REPLAY    whole turns, as exact as can be for a queue that is foretold. Knots in the number
              of rows bend both ways, so coefficients may be negative.

All fits are least squares of the relative error: a wrong short step harms a latency target as
much as a wrong long one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from telemetry.costs.step_load import Load
from telemetry.numbers.quantiles import median

_RIDGE = 1e-4
# a step that took so many times what it should teaches nothing of what work costs
_OUTLIER = 1.5
# in a replay that bound follows how far steps usually are from the fit, within these
_FAR = 6.0  # medians
_LEAST_OUTLIER, _MOST_OUTLIER = 1.3, 2.0


class Term(StrEnum):
    """One column of a model; ROWS_BEYOND and ROW_STAIRS are a column for each knot."""

    PROMPT_TOKENS = "prompt_tokens"
    PAIRS = "pairs"
    DECODE_TOKENS = "decode_tokens"
    DECODE_ROWS = "decode_rows"
    CONTEXT_TOKENS = "context_tokens"
    CROSSED = "crossed"
    SAMPLED_ROWS = "sampled_rows"
    SAMPLED_PROMPTS = "sampled_prompts"
    ROWS_BEYOND = "rows_beyond"  # decode rows more than the knot
    ROW_STAIRS = "row_stairs"  # 1 with more decode rows than the knot
    ROWS_BESIDE = "rows_beside"  # decode rows from the second on, where there is a prompt
    HAS_DECODES = "has_decodes"
    HAS_PROMPTS = "has_prompts"
    RESHAPES = "reshapes"


_VALUES: Mapping[Term, Callable[[Load], float]] = {
    Term.PROMPT_TOKENS: lambda load: load.prompt_tokens,
    Term.PAIRS: lambda load: load.pairs,
    Term.DECODE_TOKENS: lambda load: load.decode_tokens,
    Term.DECODE_ROWS: lambda load: load.decode_rows,
    Term.CONTEXT_TOKENS: lambda load: load.context_tokens,
    Term.CROSSED: lambda load: load.crossed,
    Term.SAMPLED_ROWS: lambda load: load.sampled_rows,
    Term.SAMPLED_PROMPTS: lambda load: load.sampled_rows - load.decode_rows,
    Term.ROWS_BESIDE: lambda load: max(0, load.decode_rows - 1) if load.prompt_tokens else 0,
    Term.HAS_DECODES: lambda load: float(load.decode_rows > 0),
    Term.HAS_PROMPTS: lambda load: float(load.prompt_tokens > 0),
    Term.RESHAPES: lambda load: float(load.reshapes),
}
_KNOTTED: Mapping[Term, Callable[[Load, int], float]] = {
    Term.ROWS_BEYOND: lambda load, knot: max(0, load.decode_rows - knot),
    Term.ROW_STAIRS: lambda load, knot: float(load.decode_rows > knot),
}

Usual = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _not_slow(spans_ns: np.ndarray, foretold: np.ndarray) -> np.ndarray:
    return np.asarray(spans_ns <= _OUTLIER * foretold)


def _near(spans_ns: np.ndarray, foretold: np.ndarray) -> np.ndarray:
    within = (spans_ns <= _OUTLIER * foretold) & (spans_ns * _OUTLIER >= foretold)
    return np.asarray(within)


def _as_near_as_most(spans_ns: np.ndarray, foretold: np.ndarray) -> np.ndarray:
    """By how far steps usually are from the fit. On a quiet machine little is far; where it was
    slow for a while, what only that while computed would else be taken for its price."""
    far = np.abs(np.log(spans_ns / foretold.clip(1)))
    middle = median(far.tolist()) or 0.0
    limit = np.clip(_FAR * middle, np.log(_LEAST_OUTLIER), np.log(_MOST_OUTLIER))
    return np.asarray(far < limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model's terms and its fit. Coefficients are below zero only if it is `signed`. Fitted is
    once to all steps and again to those that are `usual`, given their spans and what the first
    fit foretells, if at least `least_steps` are. If it is `unbiased` the total is right: a queue
    adds small biases up."""

    terms: tuple[Term, ...]
    knots: tuple[int, ...] = ()
    signed: bool = False
    usual: Usual | None = None
    least_steps: int = 0
    unbiased: bool = False

    def columns(self, load: Load, knots: Sequence[int] | None = None) -> list[float]:
        """1 for the base, and the value of each term; of other knots if they are given."""
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


BUDGET = Preset(terms=(Term.PROMPT_TOKENS, Term.DECODE_ROWS, Term.CONTEXT_TOKENS), least_steps=30)
LEDGER = Preset(
    terms=(
        Term.PROMPT_TOKENS,
        Term.PAIRS,
        Term.DECODE_TOKENS,
        Term.CONTEXT_TOKENS,
        Term.CROSSED,
    ),
    usual=_not_slow,
    least_steps=12,
)
BASELINE = Preset(
    terms=(*LEDGER.terms, Term.SAMPLED_ROWS, Term.ROW_STAIRS),
    knots=(1, 2, 4, 8, 16, 32, 64),
    usual=_near,
    least_steps=30,
    unbiased=True,
)
AROUND = Preset(terms=(Term.SAMPLED_ROWS,), usual=_near, least_steps=30, unbiased=True)
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
    ),
    knots=(1, 2, 4, 8, 16, 32, 64, 128),
    signed=True,
    usual=_as_near_as_most,
    least_steps=30,
)


class Fit(NamedTuple):
    """`coefficients` in the order of a preset's columns, and (steps,) bool of those fitted to."""

    coefficients: np.ndarray
    usual: np.ndarray


def fit(preset: Preset, columns: np.ndarray, spans_ns: np.ndarray) -> Fit:
    """`columns` (steps, 1 + terms) as `Preset.columns` gives them."""
    columns, spans = columns.astype(np.float64), spans_ns.astype(np.float64)
    solve = _ridge if preset.signed else _non_negative
    found = solve(columns, spans)
    usual = np.ones(len(spans), dtype=bool)
    if preset.usual is not None:
        near = preset.usual(spans, columns @ found)
        if preset.least_steps <= near.sum() < len(spans):
            usual, found = near, solve(columns[near], spans[near])
    if preset.unbiased:
        total = float((columns @ found).sum())
        if total > 0:
            found = found * (float(spans.sum()) / total)
    return Fit(found, usual)


def _non_negative(columns: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """A coefficient that would be negative is taken out and the rest fitted again."""
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


def _ridge(columns: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """With a ridge so light that it only decides what the data leave open."""
    weighted = columns / spans[:, None]
    scale = np.abs(weighted).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = weighted / scale
    ridge = _RIDGE * np.sqrt(len(spans)) * np.eye(columns.shape[1])
    target = np.concatenate([np.ones(len(spans)), np.zeros(columns.shape[1])])
    solution, *_ = np.linalg.lstsq(np.vstack([scaled, ridge]), target, rcond=None)
    found: np.ndarray = solution / scale
    return found
