"""The spans that a link may point to: those of sampled traces only.

A stall's span links to the span of the culprit. Whether that span is exported is known when the
culprit has ended and the sampler has decided on it. Span ids are derived from facts that both
requests have, so neither tree has to be built before the other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from telemetry.facts.reasons import Phase
from telemetry.facts.traceparent import request_span_id, span_id_of
from telemetry.requests.account import Part, Stall
from telemetry.requests.phases import ChunkSpan, PhaseSpan, RequestTimeline

MAX_CHUNKS = 256
_STEPS_KEPT = 16_384  # some 10 MiB: a request with one chunk takes two, and some 1.2 KiB
_LOST_KEPT = 4096
_MASKING = (Phase.DECODE, Phase.PREFILL)  # where masks are made, the later first


def root_span_id(timeline: RequestTimeline) -> int:
    """The id of the request's root span. Ids of its other spans are made from it: a gateway and a
    node both add to one trace, and both number sequences and steps from the start."""
    accepted = timeline.accepted
    return request_span_id(accepted.trace_id, accepted.request_id, accepted.at_ns)


def chunk_span_id(root_id: int, seq_id: int, step_id: int) -> int:
    """The id of a prefill chunk's span."""
    return span_id_of(f"{root_id:016x}/{seq_id}/{step_id}")


def phase_span_id(timeline: RequestTimeline, phase: PhaseSpan) -> int | None:
    """The id of a phase's span; None for a request that never reached the engine."""
    if not timeline.sequences:
        return None
    return span_id_of(f"{root_span_id(timeline):016x}/{phase.name.value}")


def chunks_in(timeline: RequestTimeline, phase: PhaseSpan) -> list[ChunkSpan]:
    """All prefill chunks that begin within a phase; the first MAX_CHUNKS have spans."""
    return [
        chunk
        for sequence in timeline.sequences
        for chunk in sequence.chunks
        if phase.start_ns <= chunk.start_ns < phase.end_ns
    ]


@dataclass(frozen=True, slots=True)
class Target:
    """The spans of a sequence that links may point to: its chunks by step, and its request's phases
    with their span ids. Its request's root is `root_id`."""

    steps: frozenset[int] = frozenset()
    phases: tuple[tuple[PhaseSpan, int], ...] = ()
    root_id: int = 0

    def span_of(self, stall: Stall) -> int | None:
        """The id of the span in which the culprit made the token late; None if there is none."""
        trace_id, seq_id, step_id = (
            stall.culprit_trace_id,
            stall.culprit_seq_id,
            stall.culprit_step_id,
        )
        if trace_id is None or seq_id is None or step_id is None:
            return None
        if stall.part is Part.CO_PREFILL and step_id in self.steps:
            return chunk_span_id(self.root_id, seq_id, step_id)
        if stall.part is Part.CO_MASK:
            for name in _MASKING:
                for phase, span_id in self.phases:
                    meets = phase.start_ns < stall.end_ns and stall.begin_ns < phase.end_ns
                    if phase.name is name and meets:
                        return span_id
        return None


NO_TARGET = Target()


class LinkTargets:
    """Targets by sequence, of the last requests that the sampler decided on; bounded by the number
    of chunks. Thread-safe."""

    def __init__(self, steps_kept: int = _STEPS_KEPT) -> None:
        self._steps_kept = steps_kept
        self._targets: OrderedDict[int, Target] = OrderedDict()
        self._size = 0
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def exported(self, timeline: RequestTimeline) -> None:
        """The spans of this request will be exported."""
        steps: dict[int, set[int]] = {s.seq_id: set() for s in timeline.sequences}
        phases: list[tuple[PhaseSpan, int]] = []
        for phase in timeline.phases:
            span_id = phase_span_id(timeline, phase)
            if span_id is not None and phase.name in _MASKING:
                phases.append((phase, span_id))
            for chunk in chunks_in(timeline, phase)[:MAX_CHUNKS]:
                steps[chunk.seq_id].add(chunk.step_id)
        for seq_id, found in steps.items():
            self._put(seq_id, Target(frozenset(found), tuple(phases), root_span_id(timeline)))

    def not_exported(self, timeline: RequestTimeline) -> None:
        """No span of this request will be exported."""
        for sequence in timeline.sequences:
            self._put(sequence.seq_id, NO_TARGET)

    def is_undecided(self, timeline: RequestTimeline) -> bool:
        """Whether a culprit of its stalls is not decided on, or was dropped from here."""
        stalls = timeline.account.stalls if timeline.account is not None else ()
        culprits = {stall.culprit_seq_id for stall in stalls} - {None}
        return not culprits <= self._targets.keys()

    def lost(self, trace_id: str) -> None:
        """Some spans of this trace were not delivered."""
        with self._lock:
            self._lost[trace_id] = None
            if len(self._lost) > _LOST_KEPT:
                self._lost.popitem(last=False)

    def span_of(self, stall: Stall) -> int | None:
        """The id of the exported span in which the culprit made the token late; None if there is
        none."""
        if stall.culprit_seq_id is None or stall.culprit_trace_id in self._lost:
            return None
        return self._targets.get(stall.culprit_seq_id, NO_TARGET).span_of(stall)

    def _put(self, seq_id: int, target: Target) -> None:
        with self._lock:
            old = self._targets.pop(seq_id, None)
            self._size += _size(target) - (0 if old is None else _size(old))
            self._targets[seq_id] = target
            while self._size > self._steps_kept:
                _, gone = self._targets.popitem(last=False)
                self._size -= _size(gone)


def _size(target: Target) -> int:
    return 1 + len(target.steps)
