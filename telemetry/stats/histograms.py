"""Latency histograms: HDR, 1 us to 1 h, three significant digits, per measure and class.

Recording a token is one append to a list. Once a second, or when values are read, the pending
values are counted together. Exact maxima and sums are kept beside the counters.
"""

from __future__ import annotations

import numpy as np

from telemetry.numbers.hdr import PAGE, Distribution, Ints, distribution_of, merged
from telemetry.numbers.quantiles import Percentiles
from telemetry.numbers.windows import SECOND_NS, Windows
from telemetry.requests.classes import ClassBook, WorkloadClass
from telemetry.requests.phases import Measure, Measured

_PENDING = 8192
_KNOWN = 4096


class LatencyHistogram:
    """One measure of one class. One writer; readers hold the pump's lock."""

    def __init__(self) -> None:
        self._low = 0
        self._counters: Ints = np.zeros(0, np.int64)
        self._windows = Windows()
        self._pending: list[int] = []
        self._second = -1
        self._count = 0
        self._sum_ns = 0
        self._max_ns = 0
        self._total: Distribution | None = None

    def record(self, value_ns: int, at_ns: int) -> None:
        """Add a value; below 1 us it counts as 1 us, above an hour as an hour."""
        second = at_ns // SECOND_NS
        if second != self._second or len(self._pending) >= _PENDING:
            self.flush()
            self._second = second
        self._pending.append(value_ns)

    def flush(self) -> None:
        """Count the pending values, which are all of one second."""
        if not self._pending:
            return
        part = distribution_of(self._pending)
        self._pending = []
        self._total = None
        self._extend_to(int(part.indices[0]), int(part.indices[-1]))
        self._counters[part.indices - self._low] += part.counts
        self._count += part.count
        self._sum_ns += part.sum_ns
        self._max_ns = max(self._max_ns, part.max_ns)
        self._windows.add(self._second * SECOND_NS, part)

    @property
    def count(self) -> int:
        """Number of values."""
        return self._count + len(self._pending)

    def total(self) -> Distribution:
        """Since the start."""
        self.flush()
        if self._total is None:
            used = np.nonzero(self._counters)[0]
            self._total = Distribution(
                used + self._low, self._counters[used], self._count, self._sum_ns, self._max_ns
            )
        return self._total

    def last(self, now_ns: int, length_s: int) -> Distribution:
        """The values of the last `length_s` seconds, one of WINDOWS_S."""
        return merged(self.parts(now_ns, length_s))

    def parts(self, now_ns: int, length_s: int) -> list[Distribution]:
        """`last` as parts that are not merged."""
        self.flush()
        return self._windows.last(now_ns, length_s)

    def _extend_to(self, low: int, high: int) -> None:
        """Extend the counters to [low, high]: they cover only the octaves in use, not all 22."""
        start, stop = low // PAGE * PAGE, (high // PAGE + 1) * PAGE
        size = len(self._counters)
        if size:
            start, stop = min(start, self._low), max(stop, self._low + size)
        if stop - start != size:
            wider: Ints = np.zeros(stop - start, np.int64)
            wider[self._low - start : self._low - start + size] = self._counters
            self._counters = wider
        self._low = start


class _Overflow:
    """A histogram of a class `other`, for those that are counted there for want of room."""

    def __init__(self, histogram: LatencyHistogram) -> None:
        self.count = 0
        self._histogram = histogram

    def record(self, value_ns: int, at_ns: int) -> None:
        self.count += 1
        self._histogram.record(value_ns, at_ns)


class Histograms:
    """All histograms of the service; a listener of the phase fold."""

    def __init__(self, book: ClassBook | None = None) -> None:
        self.book = book or ClassBook()
        self._cells: dict[tuple[Measure, WorkloadClass], LatencyHistogram] = {}
        self._overflows: dict[tuple[Measure, WorkloadClass], _Overflow] = {}
        self._known: dict[tuple[Measure, WorkloadClass], LatencyHistogram | _Overflow] = {}

    def on_measured(self, measured: Measured) -> None:
        histogram = self._known.get((measured.measure, measured.workload))
        if histogram is None:
            histogram = self._find(measured.measure, measured.workload)
        histogram.record(measured.value_ns, measured.at_ns)

    @property
    def cells(self) -> dict[tuple[Measure, WorkloadClass], LatencyHistogram]:
        """All histograms, by measure and class."""
        return dict(self._cells)

    @property
    def overflowed(self) -> int:
        """Values counted under `other`, because there were too many classes."""
        return sum(overflow.count for overflow in self._overflows.values())

    def overall(self, measure: Measure) -> Distribution:
        """All classes together, since the start."""
        return merged(h.total() for (m, _), h in self._cells.items() if m is measure)

    def by_slo_class(self, measure: Measure) -> dict[str, Distribution]:
        """The values of a measure by SLO class since the start, over all prompt lengths, tenants
        and cache states."""
        names = sorted({cell.slo_class for m, cell in self._cells if m is measure})
        return {
            name: merged(
                histogram.total()
                for (m, cell), histogram in self._cells.items()
                if m is measure and cell.slo_class == name
            )
            for name in names
        }

    def by_class(self, measure: Measure) -> dict[WorkloadClass, Distribution]:
        """Since the start."""
        return {
            cell: histogram.total()
            for (m, cell), histogram in sorted(self._cells.items())
            if m is measure
        }

    def window_percentiles(self, now_ns: int, length_s: int) -> dict[str, Percentiles]:
        """Percentiles of the last `length_s` seconds (one of WINDOWS_S) by measure, over all
        classes."""
        found: dict[str, Percentiles] = {}
        for measure in Measure:
            parts = [
                part
                for (m, _), histogram in self._cells.items()
                if m is measure
                for part in histogram.parts(now_ns, length_s)
            ]
            found[measure.value] = merged(parts).percentiles()
        return found

    def _find(self, measure: Measure, stated: WorkloadClass) -> LatencyHistogram | _Overflow:
        cell = self.book.bounded(stated)
        key = (measure, cell)
        histogram = self._cells.get(key)
        if histogram is None:
            histogram = self._cells[key] = LatencyHistogram()
        found: LatencyHistogram | _Overflow = histogram
        if self.book.is_overflow(stated, cell):
            found = self._overflows.setdefault(key, _Overflow(histogram))
        if len(self._known) >= _KNOWN:
            self._known.clear()  # headers can name any number of tenants
        self._known[measure, stated] = found
        return found
