"""The gain of an action: predicted by the replay, and measured."""

from __future__ import annotations

import math

import msgspec


class PredictedGain(msgspec.Struct, frozen=True, kw_only=True):
    """`promised` and `kept` are the predicted and the measured gain: the share of the latency
    `measure` that removing `cause` spares. `why_not` is the reason why there is nothing to compare,
    or empty."""

    cause: str = ""
    measure: str = ""
    promised: float = 0.0
    kept: float = 0.0
    why_not: str = ""

    @property
    def off(self) -> float:
        """The relative error of the prediction."""
        return abs(self.kept - self.promised) / self.promised if self.promised else math.inf
