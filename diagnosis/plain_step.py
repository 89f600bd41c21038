"""How long a step would have taken had it only decoded: the reference for interference.

The best answer is a step of about the same batch size that did only decode. Under steady
mixed load there may be none; then a line through the window's steps, span = base +
prefill tokens x a + decodes x b, is read off at zero prefill tokens. The fit is direct,
without an array library, because the monitor imports this package and must start fast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from statistics import median_low

# Fewer steps than this say nothing about what is typical.
_MIN_BIN_STEPS = 3
_MIN_FIT_STEPS = 8
# A pivot below this share of its column is a column that repeats the others.
_SINGULAR = 1e-9


class PlainStepReference:
    """Answers for any batch size from (span_ns, decodes, prefill_tokens) of recent steps."""

    def __init__(self, steps: Sequence[tuple[int, int, int]]) -> None:
        plain = [(span, decodes) for span, decodes, prefill in steps if decodes and not prefill]
        spans_of: defaultdict[int, list[int]] = defaultdict(list)
        for span_ns, decodes in plain:
            spans_of[_bin(decodes)].append(span_ns)
        self._medians = {
            key: median_low(spans)
            for key, spans in spans_of.items()
            if len(spans) >= _MIN_BIN_STEPS
        }
        self._overall = median_low([span for span, _ in plain]) if plain else None
        self._steps = steps

    @cached_property
    def _line(self) -> tuple[float, float] | None:
        return _fit(self._steps)

    def span_ns(self, decodes: int) -> int | None:
        """Nanoseconds of a step with `decodes` rows and no prefill; None if unknowable."""
        seen = self._medians.get(_bin(decodes))
        if seen is not None:
            return seen
        if self._line is not None:
            base_ns, row_ns = self._line
            fitted_ns = round(base_ns + row_ns * decodes)
            if fitted_ns > 0:
                return fitted_ns
        return self._overall


def _bin(decodes: int) -> int:
    """Batch sizes by powers of two: 1, 2-3, 4-7 and so on."""
    return decodes.bit_length()


def _fit(steps: Sequence[tuple[int, int, int]]) -> tuple[float, float] | None:
    """Base and cost per decode row in ns; None when the steps do not tell them apart.

    A batch size that never changes cannot be told from the base, and then need not be.
    """
    rows = [step for step in steps if step[1]]
    if len(rows) < _MIN_FIT_STEPS:
        return None
    spans = [float(span) for span, _, _ in rows]
    prefill = [float(tokens) for _, _, tokens in rows]
    decodes = [float(count) for _, count, _ in rows]
    ones = [1.0] * len(rows)
    found = least_squares([ones, prefill, decodes], spans)
    if found is not None and found[1] > 0:
        return found[0], found[2]
    found = least_squares([ones, prefill], spans)
    if found is not None and found[1] > 0:
        return found[0], 0.0
    return None


def least_squares(
    columns: Sequence[Sequence[float]], values: Sequence[float]
) -> list[float] | None:
    """Coefficients of the best line by normal equations; None when columns are dependent."""
    size = len(columns)
    matrix = [[_dot(left, right) for right in columns] for left in columns]
    right_side = [_dot(column, values) for column in columns]
    scales = [matrix[i][i] for i in range(size)]
    for pivot in range(size):
        # Elimination without exchange is stable here: the matrix is symmetric and positive.
        if matrix[pivot][pivot] <= _SINGULAR * scales[pivot]:
            return None
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            for column in range(pivot, size):
                matrix[row][column] -= factor * matrix[pivot][column]
            right_side[row] -= factor * right_side[pivot]
    found = [0.0] * size
    for row in reversed(range(size)):
        known = sum(matrix[row][column] * found[column] for column in range(row + 1, size))
        found[row] = (right_side[row] - known) / matrix[row][row]
    return found


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
