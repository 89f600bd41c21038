"""How long sequences of ended requests were on the network, by engine: for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator

from service.fleet.wire.families import Family
from service.gateway.fleet.known_names import MOST_NAMES, OTHER, to_forget
from telemetry.metrics.catalog import fleet as catalog
from telemetry.requests.phases import RequestTimeline


class WireTime:
    """A listener to timelines, under the pump's lock, as its readers are. A wire below zero counts
    as none: the findings of clocks count it. `members` are the names of the membership; the oldest
    of the others makes room for a new one, and counts among `other` from then on."""

    def __init__(self, members: Callable[[], Container[str]]) -> None:
        self._members = members
        self._wire_ns: Counter[str] = Counter()
        self._sequences: Counter[str] = Counter()

    def on_timeline(self, timeline: RequestTimeline) -> None:
        for sequence in timeline.sequences:
            remote = sequence.remote
            if remote is None or remote.wire_ns is None:
                continue
            engine = self._line_of(remote.engine)
            self._sequences[engine] += 1
            self._wire_ns[engine] += max(0, remote.wire_ns)

    def _line_of(self, engine: str) -> str:
        if engine in self._sequences or len(self._sequences) < MOST_NAMES:
            return engine
        gone = to_forget(self._sequences, self._members())
        if gone is None:
            return OTHER
        self._sequences[OTHER] += self._sequences.pop(gone)
        self._wire_ns[OTHER] += self._wire_ns.pop(gone)
        return engine

    def families(self) -> Iterator[Family]:
        engines = list(self._sequences)
        yield catalog.WIRE_SECONDS, [({"engine": e}, self._wire_ns[e] / 1e9) for e in engines]
        yield catalog.WIRE_SEQUENCES, [({"engine": e}, float(self._sequences[e])) for e in engines]
