"""The question of a differential replay: why is this window slower than that reference?"""

from __future__ import annotations

from dataclasses import dataclass

from diagnosis.spans import Span
from lab.replay.iteration_cost import IterationCost
from lab.replay.recorded import RecordedRun, RecordedSequence
from service.engine.admission import Limits
from telemetry.facts.engine_records import EngineStarted


@dataclass(frozen=True, slots=True)
class Question:
    """Why is `window` slower than `reference`, in the same run of one engine; or, without a
    reference, than with the limits of the engine `baseline`?"""

    run: RecordedRun
    cost: IterationCost
    reference: Span | None
    window: Span
    baseline: EngineStarted | None = None

    @property
    def limits_before(self) -> EngineStarted | Limits | None:
        """The limits of the baseline, else those in force at the end of the reference."""
        reference = self.reference
        if self.baseline is not None or reference is None:
            return self.baseline
        return self.run.limits_in(reference.begin_ns, reference.end_ns)[-1]

    @property
    def limits_now(self) -> list[Limits]:
        """All that were in force in the window."""
        return self.run.limits_in(self.window.begin_ns, self.window.end_ns)


def arrivals(run: RecordedRun, span: Span) -> list[RecordedSequence]:
    """Sequences that arrived in a span, in order."""
    found = [one for one in run.sequences.values() if span.has(arrival_ns(one))]
    return sorted(found, key=arrival_ns)


def arrival_ns(sequence: RecordedSequence) -> int:
    """When the gateway submitted it, or, where that is unknown, when the engine received it."""
    submitted_ns = sequence.submitted_ns
    return sequence.entry.at_ns if submitted_ns is None else submitted_ns
