"""What a step costs the scheduler's step budget, fitted to the warm-up and to the last steps.

    T = base + a * prompt tokens + p * pairs + b * decode rows + c * context tokens of the decodes
        + m where there are prompts

Terms and fit are the preset BUDGET of `telemetry.costs.cost_model`. The steps of the warm-up stay
in the fit, so that it knows what prompts cost before any came; the last steps with prompts and the
last ones without are kept apart, so that a long time without prompts does not make it forget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from telemetry.costs.cost_model import BUDGET, Term
from telemetry.costs.cost_model import fit as fit_preset
from telemetry.costs.step_load import StepLoad, load_of_step, load_of_warm_up
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.engine_start import WarmUpStep
from telemetry.facts.records import Fact
from telemetry.numbers.quantiles import median

WINDOW_STEPS = 200  # with prompts, and as many without
REFIT_STEPS = 25
_RECENT_STEPS = 1000
_AROUND_STEPS = 5  # as many as `service.engine.planning.budget` corrects a prediction by
_FIRST_SPREAD = 1.2  # until so many steps with decodes and prompts have been seen:
_LEAST_MIXED_STEPS = 20
_DEVIATIONS = 3.5
_OUTLIER, _MOST_SPREAD = 2.0, 2.0


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds: of any step, per prompt token, per decode row, per token that a decode attends
    to, per pair of a prompt token and a token that it attends to, and of any step with prompts.

    Steps with decodes and prompts took at most `spread` times their prediction, corrected by what
    the steps just before them took; nearly all of them. `around_ns` of a step are not the forward
    pass.
    """

    base_ns: int
    prefill_token_ns: int
    decode_row_ns: int
    context_token_ns: int
    pair_ns: float = 0.0
    mixed_ns: int = 0
    spread: float = 1.0
    around_ns: int = 0


class Measured(NamedTuple):
    """The columns of a step (`Preset.columns`), the nanoseconds that it took, and how many of them
    were not its forward pass."""

    columns: list[float]
    span_ns: int
    around_ns: int = 0


def measured(load: StepLoad, span_ns: int, around_ns: int = 0) -> Measured:
    return Measured(BUDGET.columns(load), span_ns, around_ns)


def fit(steps: Sequence[Measured], recent: Sequence[Measured] = ()) -> StepCost:
    """Fitted to `steps`; the spread is that of the `recent` ones, in their order."""
    columns = np.array([one.columns for one in steps])
    spans = np.array([one.span_ns for one in steps])
    found = fit_preset(BUDGET, columns, spans).coefficients
    base, *rest = found.tolist()
    by_term = dict(zip(BUDGET.terms, rest, strict=True))
    return StepCost(
        base_ns=round(base),
        prefill_token_ns=round(by_term[Term.PROMPT_TOKENS]),
        decode_row_ns=round(by_term[Term.DECODE_ROWS]),
        context_token_ns=round(by_term[Term.CONTEXT_TOKENS]),
        pair_ns=round(by_term[Term.PAIRS], 3),
        mixed_ns=round(by_term[Term.HAS_PROMPTS]),
        spread=_spread(found, recent),
        around_ns=round(median([one.around_ns for one in recent]) or 0),
    )


def warm_up_steps(steps: Iterable[WarmUpStep]) -> list[Measured]:
    """The recorded steps of a warm-up as measurements."""
    return [measured(load_of_warm_up(step), step.span_ns) for step in steps]


def _spread(found: np.ndarray, recent: Sequence[Measured]) -> float:
    """How far steps with decodes and prompts go beyond their prediction, at the speed of the steps
    before each: as far as `_DEVIATIONS` standard deviations, of the logarithm."""
    if len(recent) <= _AROUND_STEPS:
        return _FIRST_SPREAD
    columns = np.array([one.columns for one in recent])
    ratios = np.array([one.span_ns for one in recent]) / (columns @ found).clip(1)
    around = sliding_window_view(ratios[:-1], _AROUND_STEPS)
    before = np.array([median(ratios_around) for ratios_around in around.tolist()])
    prompts, rows = (
        columns[_AROUND_STEPS:, 1 + BUDGET.terms.index(term)]
        for term in (Term.PROMPT_TOKENS, Term.DECODE_ROWS)
    )
    mixed = (prompts > 0) & (rows > 0)
    beyond = (ratios[_AROUND_STEPS:] / before.clip(1e-9))[mixed][-WINDOW_STEPS:]
    if len(beyond) < _LEAST_MIXED_STEPS:
        return _FIRST_SPREAD
    logs = np.log(beyond.clip(1 / _OUTLIER, _OUTLIER))
    spread = float(np.exp(logs.mean() + _DEVIATIONS * logs.std()))
    return round(min(_MOST_SPREAD, max(1.0, spread)), 3)


class StepCostFold:
    """Refits every few steps and calls `on_cost` with what it found.

    A step's span begins where the one before was committed, if that was later than its own
    begin: steps of a deeper pipeline overlap. Scores of prompt tokens are left out: the budget has
    their cost of its own.
    """

    def __init__(self, on_cost: Callable[[StepCost], None]) -> None:
        self._on_cost = on_cost
        self._warm_up: list[Measured] = []
        self._seen = {mixed: deque[Measured](maxlen=WINDOW_STEPS) for mixed in (False, True)}
        self._recent: deque[Measured] = deque(maxlen=_RECENT_STEPS)
        self._since_fit = 0
        self._last_ns = 0

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case EngineStarted():
                    self._started(fact)
                case _:
                    pass

    def _started(self, fact: EngineStarted) -> None:
        self._warm_up = warm_up_steps(fact.warm_up)
        self._recent.clear()
        for seen in self._seen.values():
            seen.clear()

    def _step(self, step: StepRecorded) -> None:
        span_ns = step.committed_ns - max(step.begin_ns, self._last_ns) - step.score_ns
        self._last_ns = step.committed_ns
        if span_ns <= 0 or all(row.wasted for row in step.rows):
            return  # a failed step: its length is not the cost of its rows
        load = load_of_step(step)
        one = measured(load, span_ns, span_ns - (step.sample_ns - step.forward_ns - step.score_ns))
        self._seen[load.prompt_tokens > 0].append(one)
        self._recent.append(one)
        self._since_fit += 1
        steps = [*self._warm_up, *self._seen[False], *self._seen[True]]
        if self._since_fit >= REFIT_STEPS and len(steps) >= BUDGET.least_steps:
            self._since_fit = 0
            self._on_cost(fit(steps, list(self._recent)))
