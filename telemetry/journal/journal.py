"""The flight recorder's memory: the last minutes of all facts, compressed, always on.

A fold that keeps all facts in the order in which the folds take them. Facts are encoded and
compressed in pieces (`telemetry.journal.journal_format`); pieces are grouped into segments. When
the journal is over its capacity the oldest segment is dropped. Each segment has the facts about
what was live when it began, so that the remaining segments can be read by themselves.

It runs on the pump's thread and holds the interpreter lock only to encode one piece; zlib works
without it. Any thread may call `frames`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from telemetry.facts.base import JournalStats
from telemetry.facts.clock import Clock, WallAnchor, read_wall_anchor
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.records import SCHEMA_VERSION, Fact, fact_ns
from telemetry.journal import journal_format as form
from telemetry.journal.atomic_file import atomic_file
from telemetry.journal.journal_format import Header
from telemetry.journal.live_requests import LiveRequests
from telemetry.requests.slo_policy import SloPolicy

CAPACITY_BYTES = 64 * 1024 * 1024
TARGET_NS = 300_000_000_000
PIECE_WEIGHT = 2048
PIECE_AGE_NS = 1_000_000_000
_SEGMENT_AGE_NS = 10_000_000_000
_SEGMENTS = 128
_PIECE_OVERHEAD_BYTES = 256
_SEGMENT_OVERHEAD_BYTES = 1024
_REFERENCE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """One FACT frame."""

    number: int
    frame: bytes
    facts: int
    first_ns: int


@dataclass(slots=True)
class Segment:
    """Pieces that are dropped together. `carried` are encoded facts about what was live when it
    began; `carried_bytes` counts those that no older segment has. `facts_before` is the number of
    facts before it."""

    number: int
    begun_ns: int
    anchor: WallAnchor
    carried: tuple[bytes, ...]
    carried_bytes: int
    facts_before: int
    pieces: list[Piece] = field(default_factory=list)
    bytes: int = _SEGMENT_OVERHEAD_BYTES
    facts: int = 0


class Journal:
    """A bounded ring of facts. The pump writes; any thread may call `frames`, `after` and
    `stats`."""

    def __init__(
        self,
        clock: Clock,
        capacity_bytes: int = CAPACITY_BYTES,
        read_anchor: Callable[[], WallAnchor] = read_wall_anchor,
        slo: SloPolicy | None = None,
    ) -> None:
        """`slo` is the SLO policy of the server, for the header."""
        assert capacity_bytes > 0, capacity_bytes
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._read_anchor = read_anchor
        self._slo = slo
        self._lock = threading.Lock()
        self._live = LiveRequests()
        self._segments: deque[Segment] = deque()
        self._bytes = 0
        self._facts = 0
        self._dropped = 0
        self._next_piece = 0
        self._next_segment = 0
        self._carried_before: set[int] = set()
        self._last_ns = 0
        self._pending: list[Fact] = []
        self._pending_weight = 0
        self._pending_since_ns = 0

    def on_facts(self, facts: Sequence[Fact]) -> None:
        with self._lock:
            if not self._pending:
                self._pending_since_ns = self._clock.now_ns()
            for fact in facts:
                self._pending.append(fact)
                self._pending_weight += _weight(fact)
                if self._pending_weight >= PIECE_WEIGHT:
                    self._seal()
            self._seal_if_old()

    def seal_if_old(self) -> None:
        """Seal the pending facts if they are a second old: they are not in any file before."""
        with self._lock:
            self._seal_if_old()

    def seal(self) -> None:
        """Seal the pending facts as a piece."""
        with self._lock:
            self._seal()

    def frames(self, reason: str, facts_lost: int = 0) -> list[bytes]:
        """The journal as the frames of one file; frames are shared, not copied."""
        with self._lock:
            self._seal()
            segments = list(self._segments)
            pieces = [piece.frame for segment in segments for piece in segment.pieces]
            facts = sum(segment.facts for segment in segments)
            dropped = self._dropped
        header = self._header(reason, segments, dropped, facts_lost)
        return [
            form.MAGIC,
            form.head(header),
            *_carried(segments, dropped),
            *pieces,
            form.done(facts),
        ]

    def opening(self, segment: Segment, reason: str) -> list[bytes]:
        """The first frames of a file that begins with `segment`."""
        header = self._header(reason, [segment], segment.facts_before, 0)
        return [form.MAGIC, form.head(header), *_carried([segment], segment.facts_before)]

    def after(self, piece_number: int) -> list[tuple[Segment, Piece]]:
        """Sealed pieces with a higher number than `piece_number`, oldest first."""
        found: list[tuple[Segment, Piece]] = []
        with self._lock:
            for segment in reversed(self._segments):
                for piece in reversed(segment.pieces):
                    if piece.number <= piece_number:
                        found.reverse()
                        return found
                    found.append((segment, piece))
        found.reverse()
        return found

    def stats(self) -> JournalStats:
        with self._lock:
            begin_ns = self._begin_ns()
            covered_ns = 0 if begin_ns is None else max(0, self._last_ns - begin_ns)
            return JournalStats(
                bytes=self._bytes,
                capacity_bytes=self._capacity_bytes,
                facts=self._facts + len(self._pending),
                facts_dropped=self._dropped,
                covered_ns=covered_ns,
                is_short=self._dropped > 0 and covered_ns < TARGET_NS,
            )

    def _begin_ns(self) -> int | None:
        for segment in self._segments:
            if segment.pieces:
                return segment.pieces[0].first_ns
        return fact_ns(self._pending[0]) if self._pending else None

    def _header(
        self, reason: str, segments: list[Segment], dropped: int, facts_lost: int
    ) -> Header:
        pieces = segments[0].pieces if segments else []
        return Header(
            format=form.FORMAT,
            schema=SCHEMA_VERSION,
            reason=reason,
            pid=os.getpid(),
            at_ns=self._clock.now_ns(),
            anchors=(*(segment.anchor for segment in segments), self._read_anchor()),
            cut_ns=pieces[0].first_ns if dropped and pieces else None,
            facts_dropped=dropped,
            facts_lost=facts_lost,
            slo=self._slo,
        )

    # Under the lock

    def _seal_if_old(self) -> None:
        if self._pending and self._clock.now_ns() - self._pending_since_ns >= PIECE_AGE_NS:
            self._seal()

    def _seal(self) -> None:
        facts = self._pending
        if not facts:
            return
        self._pending, self._pending_weight = [], 0
        self._pending_since_ns = self._clock.now_ns()
        segment = self._segment_for_next()
        data = form.piece(facts)
        piece = Piece(self._next_piece, data, len(facts), fact_ns(facts[0]))
        self._next_piece += 1
        segment.pieces.append(piece)
        segment.facts += len(facts)
        segment.bytes += len(data) + _PIECE_OVERHEAD_BYTES
        self._bytes += len(data) + _PIECE_OVERHEAD_BYTES
        self._facts += len(facts)
        self._last_ns = max(self._last_ns, fact_ns(facts[-1]))
        for fact in facts:
            self._live.take(fact)
        while self._bytes > self._capacity_bytes and len(self._segments) > 1:
            self._drop_oldest()

    def _segment_for_next(self) -> Segment:
        now_ns = self._clock.now_ns()
        if self._segments:
            last = self._segments[-1]
            is_small = last.bytes < self._capacity_bytes // _SEGMENTS
            if is_small and now_ns - last.begun_ns < _SEGMENT_AGE_NS:
                return last
        carried = self._live.encoded()
        fresh = [group for group in carried if id(group) not in self._carried_before]
        self._carried_before = {id(group) for group in carried}
        new_bytes = sum(map(len, fresh)) + _REFERENCE_BYTES * len(carried)
        before = self._dropped + self._facts
        anchor = self._read_anchor()
        segment = Segment(self._next_segment, now_ns, anchor, carried, new_bytes, before)
        self._next_segment += 1
        self._segments.append(segment)
        self._bytes += segment.bytes + new_bytes
        return segment

    def _drop_oldest(self) -> None:
        """Drop the oldest segment. What it carried and the next one carries too now counts for the
        next one."""
        gone = self._segments.popleft()
        self._facts -= gone.facts
        self._dropped += gone.facts
        self._bytes -= gone.bytes + gone.carried_bytes
        successor = self._segments[0]
        all_bytes = sum(map(len, successor.carried)) + _REFERENCE_BYTES * len(successor.carried)
        self._bytes += all_bytes - successor.carried_bytes
        successor.carried_bytes = all_bytes


def write_journal(
    path: Path, facts: Iterable[Fact], clock: Clock, reason: str, slo: SloPolicy | None = None
) -> None:
    """Write a complete list of facts as a journal file, in their order. Raises OSError."""
    journal = Journal(clock, capacity_bytes=1 << 40, slo=slo)
    for fact in facts:
        journal.on_facts((fact,))
    with atomic_file(path) as partial, partial.open("wb") as file:
        file.writelines(journal.frames(reason))


def _carried(segments: list[Segment], dropped: int) -> list[bytes]:
    """The CARR frame; empty if no facts were dropped, because the facts themselves are there."""
    if not segments or not dropped or not segments[0].carried:
        return []
    return [form.carried(segments[0].carried, segments[0].begun_ns)]


def _weight(fact: Fact) -> int:
    """The approximate cost of encoding a fact, in rows of a step."""
    if isinstance(fact, StepRecorded):
        return 8 + len(fact.rows) + len(fact.skips)
    return 4
