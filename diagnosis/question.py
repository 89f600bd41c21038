"""What a replay is asked: why was this stretch of time worse than that one?"""

from __future__ import annotations

from dataclasses import dataclass

from service.sim.recorded import RecordedRun
from service.sim.turn_cost import TurnCost
from telemetry.engine_records import EngineStarted


@dataclass(frozen=True, slots=True)
class Span:
    """[begin, end) in monotonic ns."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    def has(self, at_ns: int) -> bool:
        return self.begin_ns <= at_ns < self.end_ns


@dataclass(frozen=True, slots=True)
class Question:
    """Why `window` is worse than `reference`, in one engine's life; or, without one, than with
    the configuration of `usual`."""

    run: RecordedRun
    cost: TurnCost
    reference: Span | None
    window: Span
    usual: EngineStarted | None = None
