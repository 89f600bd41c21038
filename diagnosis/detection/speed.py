"""How much the speed of a machine varies without a fault, as steps show it.

Machines that are shared get slower and faster by themselves, for seconds and for minutes. Each time
a reference is fitted again, the steps since the last one say how far that one was off: a slowness
that no measurement of the host explains has to exceed that.
"""

from __future__ import annotations

from collections import deque
from math import log, sqrt

from diagnosis.detection.reference import Cost
from diagnosis.detection.steps import Steps
from diagnosis.thresholds import (
    LEAST_SPEED_STEPS,
    PRIOR_SPEED_SPREAD,
    PRIOR_SPEEDS,
    SPEEDS_KEPT,
)


class SpeedDrift:
    """Of one process. Log ratios of measured to predicted time, the newest SPEEDS_KEPT."""

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
