"""What a replay is asked: why was this stretch of time worse than that one?"""

from __future__ import annotations

from dataclasses import dataclass

from lab.replay.iteration_cost import IterationCost
from lab.replay.recorded import RecordedRun, RecordedSequence
from telemetry.facts.engine_records import EngineStarted


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
    cost: IterationCost
    reference: Span | None
    window: Span
    usual: EngineStarted | None = None


def arrivals(run: RecordedRun, span: Span) -> list[RecordedSequence]:
    """Sequences that came in a span, in order."""
    found = [one for one in run.sequences.values() if span.has(came_ns(one))]
    return sorted(found, key=came_ns)


def came_ns(sequence: RecordedSequence) -> int:
    """When the gateway handed it over, or, unknown, the engine took it."""
    submitted_ns = sequence.submitted_ns
    return sequence.entry.at_ns if submitted_ns is None else submitted_ns
