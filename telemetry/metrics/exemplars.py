"""Exemplars: for each bucket of a latency histogram a trace that shows such a value.

Only traces that are kept are offered, so that a link from a dashboard leads somewhere. The
newest in a bucket wins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from telemetry.facts.clock import WallAnchor, read_wall_anchor
from telemetry.metrics.metric import LATENCY_BOUNDS_S
from telemetry.requests.classes import ClassBook, WorkloadClass
from telemetry.requests.phases import Measure, RequestTimeline

_BOUNDS_NS = tuple(round(bound_s * 1e9) for bound_s in LATENCY_BOUNDS_S)
_BOUNDS = np.array(_BOUNDS_NS, np.int64)
_ANCHOR_EVERY_NS = 10_000_000_000

Kept = Callable[[RequestTimeline], bool]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A value and the trace in which it was measured, at `unix_ns`."""

    trace_id: str
    value_ns: int
    unix_ns: int


class ExemplarStore:
    """A listener of the phase fold, to be called after whoever decides which traces are kept.

    `kept` says whether the trace of an ended request was. `wall` ties stamps to Unix time; an
    exemplar's time is settled once, since Prometheus takes one whose time moved for another.
    """

    def __init__(
        self,
        book: ClassBook,
        kept: Kept = lambda timeline: True,
        wall: Callable[[], WallAnchor] = read_wall_anchor,
    ) -> None:
        self._book = book
        self._kept = kept
        self._wall = wall
        self._anchor = wall()
        self._buckets: dict[tuple[Measure, WorkloadClass], dict[int, Exemplar]] = {}

    def on_timeline(self, timeline: RequestTimeline) -> None:
        """Offer all values of an ended request, stalled tokens among them, if it was kept."""
        if not self._kept(timeline):
            return
        trace_id, workload = timeline.accepted.trace_id, timeline.workload
        for measured in timeline.measures():
            self.offer(measured.measure, workload, trace_id, measured.value_ns, measured.at_ns)
        for sequence in timeline.sequences:
            self._offer_gaps(workload, trace_id, sequence.token_ns, timeline.ended.at_ns)

    def offer(
        self, measure: Measure, workload: WorkloadClass, trace_id: str, value_ns: int, at_ns: int
    ) -> None:
        """A value that was measured at `at_ns` in a trace that is kept."""
        if abs(at_ns - self._anchor.monotonic_ns) > _ANCHOR_EVERY_NS:
            self._anchor = self._wall()
        key = (measure, self._book.bounded(workload))
        buckets = self._buckets.setdefault(key, {})
        unix_ns = self._anchor.to_unix_ns(at_ns)
        buckets[bisect_left(_BOUNDS_NS, value_ns)] = Exemplar(trace_id, value_ns, unix_ns)

    def of(self, measure: Measure, includes: Callable[[WorkloadClass], bool]) -> list[Exemplar]:
        """All of a measure whose class `includes` accepts, oldest first."""
        found = [
            exemplar
            for (m, workload), buckets in self._buckets.items()
            if m is measure and includes(workload)
            for exemplar in buckets.values()
        ]
        return sorted(found, key=lambda exemplar: exemplar.unix_ns)

    def _offer_gaps(
        self, workload: WorkloadClass, trace_id: str, token_ns: tuple[int, ...], at_ns: int
    ) -> None:
        """The last gap in each bucket that the tokens' gaps fall into.

        They are offered as of the request's end, for only then is its trace kept: a Prometheus
        that has seen a newer exemplar takes no older one.
        """
        if len(token_ns) < 2:
            return
        gaps = np.diff(np.array(token_ns, np.int64))
        _, from_end = np.unique(np.searchsorted(_BOUNDS, gaps)[::-1], return_index=True)
        for place in len(gaps) - 1 - from_end:
            self.offer(Measure.ITL, workload, trace_id, int(gaps[place]), at_ns)


def by_bucket(exemplars: Iterable[Exemplar], bounds_s: tuple[float, ...]) -> dict[int, Exemplar]:
    """The newest exemplar of each bucket; `len(bounds_s)` stands for the one without end."""
    bounds_ns = [round(bound_s * 1e9) for bound_s in bounds_s]
    found: dict[int, Exemplar] = {}
    for exemplar in sorted(exemplars, key=lambda e: e.unix_ns):
        found[bisect_left(bounds_ns, exemplar.value_ns)] = exemplar
    return found
