"""What a step costs the scheduler's adaptive budget, fitted to the last steps.

    T = base + a * prefill tokens + b * decode rows + c * context tokens of the decodes

Terms and fit are the preset BUDGET of `telemetry.costs.cost_model`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.costs.cost_model import BUDGET
from telemetry.costs.cost_model import fit as fit_preset
from telemetry.costs.step_load import load_of_step
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.records import Fact

WINDOW_STEPS = 400
REFIT_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Nanoseconds: of any step, per prompt token, per decode row, per token attended to."""

    base_ns: int
    prefill_token_ns: int
    decode_row_ns: int
    context_token_ns: int

    def step_ns(self, prefill_tokens: int, decodes: int, context_tokens: int) -> int:
        return (
            self.base_ns
            + self.prefill_token_ns * prefill_tokens
            + self.decode_row_ns * decodes
            + self.context_token_ns * context_tokens
        )


def fit(features: Sequence[tuple[int, int, int]], spans_ns: Sequence[int]) -> StepCost:
    """`features` are (prefill tokens, decode rows, context tokens) of each step."""
    columns = np.column_stack((np.ones(len(features)), np.asarray(features)))
    found = fit_preset(BUDGET, columns, np.asarray(spans_ns)).coefficients
    base, prefill, decode, context = (round(value) for value in found.tolist())
    return StepCost(
        base_ns=base,
        prefill_token_ns=prefill,
        decode_row_ns=decode,
        context_token_ns=context,
    )


class StepCostFold:
    """Refits every REFIT_STEPS steps, whatever the batches, and calls `on_cost`.

    A step's span begins where the one before was committed, if that was later than its own
    begin: steps of a deeper pipeline overlap.
    """

    def __init__(self, on_cost: Callable[[StepCost], None]) -> None:
        self._on_cost = on_cost
        self._features: deque[tuple[int, int, int]] = deque(maxlen=WINDOW_STEPS)
        self._spans_ns: deque[int] = deque(maxlen=WINDOW_STEPS)
        self._since_fit = 0
        self._last_ns = 0

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case EngineStarted():
                    self._features.clear()
                    self._spans_ns.clear()
                case _:
                    pass

    def _step(self, step: StepRecorded) -> None:
        span_ns = step.committed_ns - max(step.begin_ns, self._last_ns)
        self._last_ns = step.committed_ns
        if span_ns <= 0 or all(row.wasted for row in step.rows):
            return  # a failed step: its length is not the cost of its rows
        load = load_of_step(step)
        self._features.append((load.prompt_tokens, load.decode_rows, load.context_tokens))
        self._spans_ns.append(span_ns)
        self._since_fit += 1
        if self._since_fit >= REFIT_STEPS and len(self._spans_ns) >= BUDGET.least_steps:
            self._since_fit = 0
            self._on_cost(fit(self._features, self._spans_ns))
