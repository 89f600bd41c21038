"""How long sequences of ended requests were on the network, by engine: for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from service.fleet.membership.members import MOST_MEMBERS
from service.fleet.wire.families import Family
from telemetry.metrics.catalog import fleet as catalog
from telemetry.requests.phases import RequestTimeline

_OTHER = "other"
_ENGINES = 2 * MOST_MEMBERS


class WireTime:
    """A listener to timelines, under the pump's lock, as its readers are. A wire below zero counts
    as none: the findings of clocks count it."""

    def __init__(self) -> None:
        self._wire_ns: Counter[str] = Counter()
        self._sequences: Counter[str] = Counter()

    def on_timeline(self, timeline: RequestTimeline) -> None:
        for sequence in timeline.sequences:
            remote = sequence.remote
            if remote is None or remote.wire_ns is None:
                continue
            engine = remote.engine
            if engine not in self._sequences and len(self._sequences) >= _ENGINES:
                engine = _OTHER
            self._sequences[engine] += 1
            self._wire_ns[engine] += max(0, remote.wire_ns)

    def families(self) -> Iterator[Family]:
        engines = list(self._sequences)
        yield catalog.WIRE_SECONDS, [({"engine": e}, self._wire_ns[e] / 1e9) for e in engines]
        yield catalog.WIRE_SEQUENCES, [({"engine": e}, float(self._sequences[e])) for e in engines]
