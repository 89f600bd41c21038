"""One request as bars over time, and who took how much of its time."""

from __future__ import annotations

from collections import Counter

import msgspec

from dashboards.explain import Explained
from telemetry.requests.account import Part

LATE_SHOWN = 12
CHUNKS_SHOWN = 64


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """[begin_ns, end_ns) since the request was accepted. `kind` says how it is drawn, `who` the
    request that a late token waited for, `part` what it waited for."""

    kind: str
    label: str
    begin_ns: int
    end_ns: int
    note: str = ""
    part: Part | None = None
    who: str | None = None

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What one other request took of this one's time, by part of the ledger."""

    request_id: str
    ns: int
    parts: dict[Part, int]


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Bars in the order in which they began, phases first of those that begin together."""

    whole_ns: int
    bars: tuple[Bar, ...]
    chunks_cut: int
    late_cut: int
    takers: tuple[Taken, ...]


def waterfall_of(explained: Explained) -> Waterfall:
    """The waterfall of an ended request; one in flight has no bars yet."""
    origin_ns = explained.phases[0].start_ns if explained.phases else 0
    phases = [
        Bar(
            kind="phase",
            label=phase.name,
            begin_ns=phase.start_ns - origin_ns,
            end_ns=phase.end_ns - origin_ns,
        )
        for phase in explained.phases
    ]
    chunks, chunks_cut = _chunks(explained, origin_ns)
    late, late_cut = _late(explained, origin_ns)
    bars = sorted([*phases, *chunks, *_preempted(explained, origin_ns), *late], key=_order)
    return Waterfall(
        whole_ns=max(1, explained.e2e_ns),
        bars=tuple(bars),
        chunks_cut=chunks_cut,
        late_cut=late_cut,
        takers=_takers(explained),
    )


_RANKS = {"phase": 0, "chunk": 1, "preempted": 1, "late": 2}


def _order(bar: Bar) -> tuple[int, int, int]:
    return bar.begin_ns, _RANKS[bar.kind], -bar.end_ns


def _chunks(explained: Explained, origin_ns: int) -> tuple[list[Bar], int]:
    found = [chunk for sequence in explained.sequences for chunk in sequence.chunks]
    if len(found) < 2:
        return [], 0  # the phase says it all
    bars = [
        Bar(
            kind="chunk",
            label=f"chunk of {chunk.tokens} tokens",
            begin_ns=chunk.start_ns - origin_ns,
            end_ns=chunk.end_ns - origin_ns,
            note=f"step {chunk.step_id}, after {chunk.context_tokens} tokens",
        )
        for chunk in found[:CHUNKS_SHOWN]
    ]
    return bars, max(0, len(found) - CHUNKS_SHOWN)


def _preempted(explained: Explained, origin_ns: int) -> list[Bar]:
    return [
        Bar(
            kind="preempted",
            label="preempted",
            begin_ns=gap.start_ns - origin_ns,
            end_ns=gap.end_ns - origin_ns,
            note=f"lost its blocks in step {gap.step_id}",
        )
        for sequence in explained.sequences
        for gap in sequence.preempted
    ]


def _late(explained: Explained, origin_ns: int) -> tuple[list[Bar], int]:
    """The longest late tokens."""
    longest = sorted(explained.stalls, key=lambda one: one.begin_ns - one.end_ns)[:LATE_SHOWN]
    bars = [
        Bar(
            kind="late",
            label="late token",
            begin_ns=one.begin_ns - origin_ns,
            end_ns=one.end_ns - origin_ns,
            note=" ".join(filter(None, (one.reason, one.cause))),
            part=one.part,
            who=one.culprit_request_id,
        )
        for one in longest
    ]
    return bars, len(explained.stalls) + explained.stalls_cut - len(bars)


def _takers(explained: Explained) -> tuple[Taken, ...]:
    """Other requests that the ledger names, with most time first."""
    parts: dict[str, Counter[Part]] = {}
    for entry in explained.ledger.entries if explained.ledger else ():
        if entry.payer is not None and entry.part is not Part.HOST_STALL:
            parts.setdefault(entry.payer, Counter())[entry.part] += entry.ns
    found = [Taken(request_id=name, ns=one.total(), parts=dict(one)) for name, one in parts.items()]
    return tuple(sorted(found, key=lambda one: (-one.ns, one.request_id)))
