"""Writes a journal as a trace file, in one pass over its facts.

A step is written when its fact comes, a request when its timeline is complete. Requests that are in
flight at the end of the journal are drawn up to there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from dashboards.timeline.engine_track import EngineTrack
from dashboards.timeline.host_track import HostTrack
from dashboards.timeline.request_track import RequestTrack
from dashboards.timeline.trace import Args, TraceWriter
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    LimitsSet,
    SequenceAdmitted,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import (
    EngineDied,
    EngineHung,
    EngineRecovered,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
    StallDetected,
    fact_ns,
)
from telemetry.journal.journal_reader import Journal
from telemetry.ledger.builder import DEFAULT_ITL_TARGET_NS, LedgerBuilder
from telemetry.requests.assumed_end import assumed_end
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline


@dataclass(slots=True)
class TraceSummary:
    """Counts of what a trace file contains; `covered_ns` is its length in time."""

    events: int = 0
    steps: int = 0
    requests: int = 0
    arrows: int = 0
    covered_ns: int = 0


class _Builder:
    """Feeds the tracks, and the phase fold whose timelines are drawn."""

    def __init__(self, trace: TraceWriter, journal: Journal, late_ns: int) -> None:
        self.summary = TraceSummary()
        self._trace = trace
        self._owners: dict[int, str] = {}
        self._engine = EngineTrack(trace, self._owner)
        self._requests = RequestTrack(trace, journal.cut_requests)
        self._host = HostTrack(trace)
        self._is_over = False
        self._last_ns = trace.origin_ns
        ledger_builder = LedgerBuilder(lambda slo_class: late_ns)
        self._phases = PhaseFold([self._draw], (), ledger_builder, journal.cut_requests)

    def on_fact(self, fact: Fact) -> None:
        self._last_ns = max(self._last_ns, fact_ns(fact))
        match fact:
            case StepRecorded():
                self.summary.steps += 1
                self._engine.step(fact)
            case EngineIdled():
                self._engine.idled(fact)
            case EngineStarted():
                self._engine.started(fact)
            case LimitsSet():
                self._engine.limits_set(fact)
            case AutopilotDecided():
                self._engine.decided(fact)
            case EngineDied():
                self._engine.died(fact)
            case StallDetected():
                self._engine.stalled(fact)
            case EngineHung():
                self._engine.hung(fact)
            case EngineRecovered():
                self._engine.recovered(fact)
            case RequestAccepted():
                self._requests.accepted(fact)
            case RequestParsed():
                self._requests.parsed(fact)
            case SequenceSubmitted():
                self._owners[fact.seq_id] = fact.request_id
                self._requests.submitted(fact)
            case RequestEnded():
                self._requests.ended(fact)
            case (
                RequestTokenized()
                | SequenceQueued()
                | SequenceAdmitted()
                | SequencePaused()
                | SequenceResumed()
                | SequenceEnded()
                | GrammarCompiled()
            ):
                pass  # in the timelines
            case _:
                self._host.on_fact(fact)
        self._phases.on_facts((fact,))

    def finish(self) -> TraceSummary:
        """Draw requests in flight, then the arrows."""
        self._phases.close()
        self._is_over = True
        for request_id in self._requests.live:
            end = assumed_end(request_id, self._last_ns, EndReason.SHUTDOWN)
            self._requests.ended(end)
            self._phases.on_facts((end,))
        self._phases.close()
        self.summary.arrows = self._requests.arrows()
        self.summary.events = self._trace.events
        self.summary.covered_ns = self._last_ns - self._trace.origin_ns
        return self.summary

    def _draw(self, timeline: RequestTimeline) -> None:
        self.summary.requests += 1
        if timeline.outcome is Outcome.LOST:  # its end fact is not in the journal
            self._requests.ended(timeline.ended)
        self._requests.draw(timeline, is_live=self._is_over)

    def _owner(self, seq_id: int) -> str:
        return self._owners.get(seq_id, f"seq-{seq_id}")


def write_timeline(
    journal: Journal, path: Path, late_ns: int = DEFAULT_ITL_TARGET_NS
) -> TraceSummary:
    """Gaps between tokens above `late_ns` are drawn as stalls, with an arrow from the culprit's
    chunk where there is one. Raises JournalError, OSError."""
    with TraceWriter(path, _origin_ns(journal), _metadata(journal)) as trace:
        builder = _Builder(trace, journal, late_ns)
        for fact in journal.facts():
            builder.on_fact(fact)
        return builder.finish()


def _origin_ns(journal: Journal) -> int:
    """Time zero of the trace: the cut of the journal, or its first fact."""
    if journal.header.cut_ns is not None:
        return journal.header.cut_ns
    first = next(journal.facts(), None)
    match first:
        case None:
            return journal.header.at_ns
        case EngineStarted(stages=(stage, *_)):
            return stage.begin_ns
        case StepRecorded():
            return first.begin_ns
        case _:
            return fact_ns(first)


def _metadata(journal: Journal) -> Args:
    header: Args = msgspec.to_builtins(journal.header)
    return {"source": "phasescope", "origin_monotonic_ns": _origin_ns(journal), **header}
