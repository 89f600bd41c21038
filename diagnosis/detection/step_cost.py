"""The cost of a step, fitted to the steps of a stretch, and how much the machine's speed varies.

Machines that are shared get slower and faster by themselves, for seconds and for minutes. Each time
a reference is fitted again, the steps since the last one say how far that one was off: a slowness
that no measurement of the host explains has to exceed that.
"""

from __future__ import annotations

from collections import deque
from math import log, sqrt

import msgspec
import numpy as np

from diagnosis.detection.steps import FEATURES, Steps
from diagnosis.thresholds import (
    COMMON_SHARE,
    COMMON_STEPS,
    LEAST_SPEED_STEPS,
    PRIOR_SPEED_SPREAD,
    PRIOR_SPEEDS,
    RANGE_MARGIN,
    SPEEDS_KEPT,
)
from telemetry.costs.cost_model import AROUND, BASELINE, Preset, fit

_RANGE_MARGIN = np.array(RANGE_MARGIN)

Columns = tuple[float, ...]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A linear model of the ns of a step: a constant and a coefficient for each of
    `steps.FEATURES`, for the forward pass, for sampling (without masks) and for the work of the
    host around them.

    `step_terms` (`stairs` in files) are added to the forward pass where more rows decode than each
    of BASELINE's knots: kernels compute rows by the tile, and the first row of a tile costs as much
    as all of it. The model is in range for steps with at most `most` of each feature and at least
    `least_rows` decode rows, values that were common. `longest_chunk` is the largest number of
    prompt tokens in one step.
    """

    forward: Columns
    step_terms: Columns = msgspec.field(name="stairs")
    sample: Columns
    host: Columns
    most: Columns
    longest_chunk: float
    least_rows: float = 0.0

    def forward_ns(self, steps: Steps) -> np.ndarray:
        found: np.ndarray = _predicted(self.forward, steps) + self._step_terms_ns(steps)
        return found

    def sample_ns(self, steps: Steps) -> np.ndarray:
        return _predicted(self.sample, steps)

    def host_ns(self, steps: Steps) -> np.ndarray:
        return _predicted(self.host, steps)

    def prompt_ns(self, steps: Steps) -> np.ndarray:
        """(steps,) ns for the prompt tokens of each step: of the forward pass, and their scores."""
        found: np.ndarray = self.prompt_forward_ns(steps) + steps.score_ns
        return found

    def prompt_forward_ns(self, steps: Steps) -> np.ndarray:
        """(steps,) ns of the forward pass for the prompt tokens of each step."""
        found: np.ndarray = self.forward[1] * steps.prompt_tokens + self.forward[2] * steps.pairs
        return found

    def decode_ns(self, steps: Steps) -> np.ndarray:
        """(steps,) ns of the forward pass for all decode rows of each step."""
        tokens, context = steps.decode_tokens, steps.context_tokens
        found: np.ndarray = self.forward[3] * tokens + self.forward[4] * context
        found = found + self._step_terms_ns(steps)
        return found

    def _step_terms_ns(self, steps: Steps) -> np.ndarray:
        found: np.ndarray = _step_terms(steps) @ np.array(self.step_terms)
        return found

    def in_range(self, steps: Steps, ratio: float = 1.0) -> np.ndarray:
        """(steps,) bool: whether the model holds for a step of this size, or of one that has
        `ratio` times as much of each feature."""
        most = ratio * _RANGE_MARGIN * np.array(self.most)
        no_more = (steps.features <= most).all(axis=1)
        return np.asarray(no_more & (steps.decode_rows >= self.least_rows))


def fit_cost(steps: Steps) -> Cost | None:
    """Fit the cost model by least squares on relative errors; None for too few steps. The fit is
    robust to stalled steps but keeps the mean of all, since a queue adds small biases up."""
    if len(steps) < BASELINE.least_steps:
        return None
    columns = _fit(BASELINE, np.hstack([steps.features, _step_terms(steps)]), steps.forward_ns)
    split = len(columns) - len(BASELINE.knots)
    unpriced = (0.0,) * (len(FEATURES) - len(AROUND.terms))
    sample, host = (
        _fit(AROUND, steps.features[:, len(unpriced) :], spans_ns)
        for spans_ns in (steps.sample_ns, steps.host_ns)
    )
    return Cost(
        forward=columns[:split],
        step_terms=columns[split:],
        sample=(sample[0], *unpriced, *sample[1:]),
        host=(host[0], *unpriced, *host[1:]),
        most=_common_max(steps.features),
        longest_chunk=float(steps.prompt_tokens.max()),
        least_rows=-_common_max(-steps.decode_rows[:, None])[0],
    )


class SpeedDrift:
    """The drift of one process's speed: log ratios of measured to predicted time, the newest
    SPEEDS_KEPT."""

    def __init__(self) -> None:
        self._squares: deque[float] = deque(maxlen=SPEEDS_KEPT)

    def add(self, steps: Steps, cost: Cost) -> None:
        """Steps after those that `cost` was fitted to."""
        known = cost.in_range(steps)
        predicted_ns = float(cost.forward_ns(steps)[known].sum())
        measured_ns = float(steps.forward_ns[known].sum())
        if known.sum() >= LEAST_SPEED_STEPS and predicted_ns > 0 and measured_ns > 0:
            self._squares.append(log(measured_ns / predicted_ns) ** 2)

    @property
    def spread(self) -> float:
        """Root mean square of the log ratios, with those of a steady machine before any is seen."""
        squares = PRIOR_SPEEDS * PRIOR_SPEED_SPREAD**2 + sum(self._squares)
        return sqrt(squares / (PRIOR_SPEEDS + len(self._squares)))


def _step_terms(steps: Steps) -> np.ndarray:
    """(steps, knots), 1 where more rows decode than the knot."""
    return (steps.decode_rows[:, None] > np.array(BASELINE.knots)).astype(np.float64)


def _common_max(features: np.ndarray) -> Columns:
    """The largest value of each feature that COMMON_SHARE of the steps reached."""
    rank = min(len(features), max(COMMON_STEPS, int(COMMON_SHARE * len(features))))
    ordered = np.sort(features, axis=0)
    return tuple(map(float, ordered[-rank]))


def _predicted(columns: Columns, steps: Steps) -> np.ndarray:
    return np.asarray(columns[0] + steps.features @ np.array(columns[1:]))


def _fit(preset: Preset, features: np.ndarray, spans_ns: np.ndarray) -> Columns:
    columns = np.column_stack((np.ones(len(features)), features))
    return tuple(fit(preset, columns, np.maximum(spans_ns, 1000.0)).coefficients.tolist())
