"""What the root cause promises of an action, beside what came of it."""

from __future__ import annotations

import math

import msgspec


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """`promised` and `kept` are shares of `measure` that taking `cause` away spares: by the
    replay, and in truth. `why_not` says why there is nothing to compare, empty where there is."""

    cause: str = ""
    measure: str = ""
    promised: float = 0.0
    kept: float = 0.0
    why_not: str = ""

    @property
    def off(self) -> float:
        """By what part of the promise the truth differs."""
        return abs(self.kept - self.promised) / self.promised if self.promised else math.inf
