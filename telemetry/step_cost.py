"""What a step costs, fitted to the steps that were measured.

    T = base + a * prefill tokens + b * decode rows + c * context tokens of the decodes

The fit is least squares of the relative error over the last steps, with no coefficient
below zero: relative, because a wrong short step harms a latency target as much as a wrong
long one. Ledger, simulator and the scheduler's adaptive budget share this model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.engine_records import EngineStarted, StepRecorded
from telemetry.records import Fact

WINDOW_STEPS = 400
REFIT_STEPS = 50
_LEAST_STEPS = 30


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
    found = fit_relative(np.asarray(features), np.asarray(spans_ns))
    base, prefill, decode, context = (round(value) for value in found.tolist())
    return StepCost(
        base_ns=base,
        prefill_token_ns=prefill,
        decode_row_ns=decode,
        context_token_ns=context,
    )


def fit_relative(features: np.ndarray, spans_ns: np.ndarray) -> np.ndarray:
    """Coefficients (1 + columns,) of a constant and the columns of `features` (steps, columns),
    none below zero, with the least squares of the relative error.

    A coefficient that would be negative is taken out and the rest fitted again.
    """
    spans = spans_ns.astype(np.float64)
    columns = np.column_stack((np.ones(len(spans)), features.astype(np.float64)))
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


class StepCostFold:
    """Refits every REFIT_STEPS steps, however they come in batches, and tells `on_cost`.

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
            return  # it failed: what it took says nothing of what it computed
        decodes = [row for row in step.rows if not row.is_prefill]
        prefill_tokens = sum(row.tokens for row in step.rows if row.is_prefill)
        context_tokens = sum(row.context_tokens for row in decodes)
        self._features.append((prefill_tokens, len(decodes), context_tokens))
        self._spans_ns.append(span_ns)
        self._since_fit += 1
        if self._since_fit >= REFIT_STEPS and len(self._spans_ns) >= _LEAST_STEPS:
            self._since_fit = 0
            self._on_cost(fit(self._features, self._spans_ns))
