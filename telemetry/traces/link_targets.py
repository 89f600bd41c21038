"""The spans that a link may point to: those of traces that are kept, and of no others.

A stall's span names who made the token late by a link to that request's own span. Whether there
is such a span is known when its request has ended and was judged; until then it is undecided.
Ids follow from what both sides know, so neither has to be built before the other.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

from telemetry.facts.reasons import Phase
from telemetry.requests.account import Part, Stall
from telemetry.requests.phases import ChunkSpan, PhaseSpan, RequestTimeline

MAX_CHUNKS = 256
_STEPS_KEPT = 16_384  # some 10 MiB: a request with one chunk takes two, and some 1.2 KiB
_LOST_KEPT = 4096
_MASKING = (Phase.DECODE, Phase.PREFILL)  # where masks are made, the later first


def chunk_span_id(trace_id: str, seq_id: int, step_id: int) -> int:
    """The id of a prefill chunk's span."""
    return _id_of(f"{trace_id}/{seq_id}/{step_id}")


def phase_span_id(timeline: RequestTimeline, phase: PhaseSpan) -> int | None:
    """The id of a phase's span; None of a request that never got to the engine."""
    if not timeline.sequences:
        return None
    first = timeline.sequences[0].seq_id
    return _id_of(f"{timeline.accepted.trace_id}/{first}/{phase.name.value}")


def chunks_in(timeline: RequestTimeline, phase: PhaseSpan) -> list[ChunkSpan]:
    """All that begin within a phase; the first MAX_CHUNKS of them have spans."""
    return [
        chunk
        for sequence in timeline.sequences
        for chunk in sequence.chunks
        if phase.start_ns <= chunk.start_ns < phase.end_ns
    ]


@dataclass(frozen=True, slots=True)
class Target:
    """What of a sequence may be pointed to: chunks by their steps, phases of its request."""

    steps: frozenset[int] = frozenset()
    phases: tuple[tuple[PhaseSpan, int], ...] = ()

    def span_of(self, stall: Stall) -> int | None:
        """The span of what made the token late; None if there is none."""
        trace_id, seq_id, step_id = (
            stall.culprit_trace_id,
            stall.culprit_seq_id,
            stall.culprit_step_id,
        )
        if trace_id is None or seq_id is None or step_id is None:
            return None
        if stall.part is Part.CO_PREFILL and step_id in self.steps:
            return chunk_span_id(trace_id, seq_id, step_id)
        if stall.part is Part.CO_MASK:
            for name in _MASKING:
                for phase, span_id in self.phases:
                    meets = phase.start_ns < stall.end_ns and stall.begin_ns < phase.end_ns
                    if phase.name is name and meets:
                        return span_id
        return None


NOTHING = Target()


class LinkTargets:
    """By sequence, of the requests that were judged last; bounded by their chunks. Any thread
    may ask and tell."""

    def __init__(self, steps_kept: int = _STEPS_KEPT) -> None:
        self._steps_kept = steps_kept
        self._targets: OrderedDict[int, Target] = OrderedDict()
        self._size = 0
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, timeline: RequestTimeline) -> None:
        """The tree of this request will be exported."""
        steps: dict[int, set[int]] = {s.seq_id: set() for s in timeline.sequences}
        phases: list[tuple[PhaseSpan, int]] = []
        for phase in timeline.phases:
            span_id = phase_span_id(timeline, phase)
            if span_id is not None and phase.name in _MASKING:
                phases.append((phase, span_id))
            for chunk in chunks_in(timeline, phase)[:MAX_CHUNKS]:
                steps[chunk.seq_id].add(chunk.step_id)
        for seq_id, found in steps.items():
            self._put(seq_id, Target(frozenset(found), tuple(phases)))

    def left(self, timeline: RequestTimeline) -> None:
        """No span of this request will be exported."""
        for sequence in timeline.sequences:
            self._put(sequence.seq_id, NOTHING)

    def is_undecided(self, timeline: RequestTimeline) -> bool:
        """Whether somebody whom its stalls name has not been judged, or so long ago that it is
        forgotten."""
        stalls = timeline.account.stalls if timeline.account is not None else ()
        culprits = {stall.culprit_seq_id for stall in stalls} - {None}
        return not culprits <= self._targets.keys()

    def lost(self, trace_id: str) -> None:
        """A part of this trace did not arrive."""
        with self._lock:
            self._lost[trace_id] = None
            if len(self._lost) > _LOST_KEPT:
                self._lost.popitem(last=False)

    def span_of(self, stall: Stall) -> int | None:
        """The exported span of what made a token late; None if there is none."""
        if stall.culprit_seq_id is None or stall.culprit_trace_id in self._lost:
            return None
        return self._targets.get(stall.culprit_seq_id, NOTHING).span_of(stall)

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


def _id_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) or 1
