"""Exemplars: for each bucket of a latency histogram the last kept trace with such a value.

Only kept traces are used, so that a link from a dashboard finds its trace.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from telemetry.facts.clock import WallAnchor, read_wall_anchor
from telemetry.facts.traceparent import request_span_id
from telemetry.metrics.metric import LATENCY_BOUNDS_S
from telemetry.requests.classes import ClassBook, WorkloadClass
from telemetry.requests.phases import Measure, RequestTimeline

_BOUNDS_NS = tuple(round(bound_s * 1e9) for bound_s in LATENCY_BOUNDS_S)
_BOUNDS = np.array(_BOUNDS_NS, np.int64)
_ANCHOR_EVERY_NS = 10_000_000_000

Kept = Callable[[RequestTimeline], bool]
SpanRef = tuple[str, int]  # trace id and span id


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A value, measured at `unix_ns`, and the trace and root span of its request."""

    trace_id: str
    span_id: int
    value_ns: int
    unix_ns: int


class ExemplarStore:
    """A listener of the phase fold, called after the tail sampler.

    `kept` says whether the trace of an ended request is kept. `wall` converts stamps to Unix time;
    an exemplar's time is computed once, because Prometheus takes one with another time for a new
    one.
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
        """Add all values of an ended request, gaps between tokens included, if it is kept."""
        if not self._kept(timeline):
            return
        accepted, workload = timeline.accepted, timeline.workload
        span_id = request_span_id(accepted.trace_id, accepted.request_id, accepted.at_ns)
        span = (accepted.trace_id, span_id)
        for measured in timeline.measures():
            self.add(measured.measure, workload, span, measured.value_ns, measured.at_ns)
        for sequence in timeline.sequences:
            self._add_gaps(workload, span, sequence.token_ns, timeline.ended.at_ns)

    def add(
        self, measure: Measure, workload: WorkloadClass, span: SpanRef, value_ns: int, at_ns: int
    ) -> None:
        """Add a value that was measured at `at_ns` in a kept trace."""
        if abs(at_ns - self._anchor.monotonic_ns) > _ANCHOR_EVERY_NS:
            self._anchor = self._wall()
        key = (measure, self._book.bounded(workload))
        buckets = self._buckets.setdefault(key, {})
        unix_ns = self._anchor.to_unix_ns(at_ns)
        buckets[bisect_left(_BOUNDS_NS, value_ns)] = Exemplar(*span, value_ns, unix_ns)

    def of(self, measure: Measure, includes: Callable[[WorkloadClass], bool]) -> list[Exemplar]:
        """The exemplars of a measure in the classes that `includes` accepts, oldest first."""
        found = [
            exemplar
            for (m, workload), buckets in self._buckets.items()
            if m is measure and includes(workload)
            for exemplar in buckets.values()
        ]
        return sorted(found, key=lambda exemplar: exemplar.unix_ns)

    def _add_gaps(
        self, workload: WorkloadClass, span: SpanRef, token_ns: tuple[int, ...], at_ns: int
    ) -> None:
        """Add the last gap between tokens in each bucket, with the time of the request's end: only
        then is its trace kept, and Prometheus takes no exemplar older than its last one."""
        if len(token_ns) < 2:
            return
        gaps = np.diff(np.array(token_ns, np.int64))
        _, from_end = np.unique(np.searchsorted(_BOUNDS, gaps)[::-1], return_index=True)
        for place in len(gaps) - 1 - from_end:
            self.add(Measure.ITL, workload, span, int(gaps[place]), at_ns)


def by_bucket(exemplars: Iterable[Exemplar], bounds_s: tuple[float, ...]) -> dict[int, Exemplar]:
    """The newest exemplar by index of its bucket; `len(bounds_s)` is the +Inf bucket."""
    bounds_ns = [round(bound_s * 1e9) for bound_s in bounds_s]
    found: dict[int, Exemplar] = {}
    for exemplar in sorted(exemplars, key=lambda e: e.unix_ns):
        found[bisect_left(bounds_ns, exemplar.value_ns)] = exemplar
    return found
