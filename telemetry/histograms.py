"""Latency histograms: HDR, 1 us to 1 h, three significant digits, per measure and class.

`hdrhistogram` is the store; recording goes around its slow Python method straight to the
counter, with the index arithmetic of the HDR paper. True maxima and exact sums are kept
beside it. A sliding window is a ring of sparse counters.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from hdrh.histogram import HdrHistogram

from telemetry.phases import Measure, Measured
from telemetry.window import Percentiles

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3
MAX_CLASSES = 8
OTHER_CLASS = "other"
DEFAULT_CLASS = "default"
_SLICE_NS = 10_000_000_000
_SLICES = 6


@dataclass(slots=True)
class _Slice:
    """Values of ten seconds."""

    number: int
    counts: Counter[int] = field(default_factory=Counter)
    max_ns: int = 0


class LatencyHistogram:
    """One measure of one class. One writer."""

    def __init__(self) -> None:
        self._hdr = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
        self._counts = self._hdr.counts
        self._current: _Slice | None = None
        self._shift = self._hdr.sub_bucket_half_count_magnitude
        self._mask = self._hdr.sub_bucket_mask
        self._slices: deque[_Slice] = deque(maxlen=_SLICES)
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0

    def record(self, value_ns: int, at_ns: int) -> None:
        """Add a value; below 1 us it counts as 1 us, above an hour as an hour."""
        self.record_at(self.index_of(value_ns), value_ns, at_ns)

    def record_at(self, index: int, value_ns: int, at_ns: int) -> None:
        """`record`, where the caller knows the counter. Once a token, twice: no calls in it."""
        self._counts[index] += 1
        self.count += 1
        self.sum_ns += value_ns
        if value_ns > self.max_ns:
            self.max_ns = value_ns
        current = self._current
        if current is None or current.number < at_ns // _SLICE_NS:
            current = self._next_slice(at_ns)
        counts = current.counts
        counts[index] = counts.get(index, 0) + 1
        if value_ns > current.max_ns:
            current.max_ns = value_ns

    def index_of(self, value_ns: int) -> int:
        """The counter that holds `value_ns`."""
        value_us = min(max(value_ns // 1000, LOWEST_US), HIGHEST_US)
        bucket = (value_us | self._mask).bit_length() - (self._shift + 1)
        index: int = (bucket << self._shift) + (value_us >> bucket)
        return index

    def window(self, now_ns: int) -> Percentiles:
        """Of the last minute (to ten seconds)."""
        oldest = now_ns // _SLICE_NS - _SLICES + 1
        merged: Counter[int] = Counter()
        max_ns = 0
        for part in self._slices:
            if part.number >= oldest:
                merged += part.counts
                max_ns = max(max_ns, part.max_ns)
        return self._percentiles(sorted(merged.items()), max_ns)

    def total(self) -> Percentiles:
        """Since the start."""
        counts = self.counts()
        used = np.nonzero(counts)[0]
        return self._percentiles([(int(i), int(counts[i])) for i in used], self.max_ns)

    def counts(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """All counters, a view."""
        return np.frombuffer(self._hdr.counts, np.uint64)

    def cumulative(self, bounds_ns: Iterable[int]) -> list[int]:
        """How many values are at most each bound (to the store's 0.1 %)."""
        sums = self.counts().cumsum()
        return [int(sums[self.index_of(bound_ns)]) for bound_ns in bounds_ns]

    def _next_slice(self, at_ns: int) -> _Slice:
        self._current = _Slice(at_ns // _SLICE_NS)
        self._slices.append(self._current)
        return self._current

    def _percentiles(self, pairs: list[tuple[int, int]], max_ns: int) -> Percentiles:
        if not pairs:
            return Percentiles(0, None, None, None, None)
        indices, counts = (np.array(column) for column in zip(*pairs, strict=True))
        sums = counts.cumsum()
        total = int(sums[-1])
        ranks = [max(1, int(q / 100 * total + 0.5)) for q in (50.0, 95.0, 99.0)]
        p50, p95, p99 = (
            min(self._value_ns(int(indices[np.searchsorted(sums, rank)])), max_ns) for rank in ranks
        )
        return Percentiles(total, p50, p95, p99, max_ns)

    def _value_ns(self, index: int) -> int:
        value_us: int = self._hdr.get_highest_equivalent_value(
            self._hdr.get_value_from_index(index)
        )
        return value_us * 1000


class Histograms:
    """All histograms of the service; a listener of the phase fold.

    Classes come from a request header, so their number is bounded: beyond MAX_CLASSES a
    new one is counted as `other`.
    """

    def __init__(self) -> None:
        self._by_key: dict[tuple[Measure, str], LatencyHistogram] = {}
        self._all = {measure: LatencyHistogram() for measure in Measure}
        self._classes: set[str] = set()

    def on_measured(self, measured: Measured) -> None:
        key = (measured.measure, self._class(measured.slo_class))
        histogram = self._by_key.get(key)
        if histogram is None:
            histogram = self._by_key[key] = LatencyHistogram()
        index = histogram.index_of(measured.value_ns)
        histogram.record_at(index, measured.value_ns, measured.at_ns)
        self._all[measured.measure].record_at(index, measured.value_ns, measured.at_ns)

    def overall(self, measure: Measure) -> LatencyHistogram:
        """All classes together."""
        return self._all[measure]

    def by_class(self, measure: Measure) -> dict[str, LatencyHistogram]:
        return {name: h for (m, name), h in sorted(self._by_key.items()) if m is measure}

    def windows(self, now_ns: int) -> dict[str, Percentiles]:
        """Percentiles of the last minute, by measure."""
        return {measure.value: h.window(now_ns) for measure, h in self._all.items()}

    def _class(self, name: str) -> str:
        name = name or DEFAULT_CLASS
        if name not in self._classes:
            if len(self._classes) >= MAX_CLASSES:
                return OTHER_CLASS
            self._classes.add(name)
        return name
