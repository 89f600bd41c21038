"""HDR histograms of latencies: 1 us to an hour, three significant digits.

`hdrhistogram` is the store and the encoding; values are recorded a request at a time with
numpy straight into its counters, since its own method costs microseconds a value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

from service.bench.result import Latency

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3


class Histogram:
    """One measure of one class."""

    def __init__(self) -> None:
        self._hdr = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
        self._counts: npt.NDArray[np.uint64] = np.frombuffer(self._hdr.counts, np.uint64)
        self._shift: int = self._hdr.sub_bucket_half_count_magnitude
        self._mask: int = self._hdr.sub_bucket_mask
        self.count = 0
        self._sum_ns = 0
        self._max_ns = 0

    def record(self, values_ns: npt.NDArray[np.int64] | list[int]) -> None:
        """Add values; below 1 us they count as 1 us, above an hour as an hour."""
        values = np.asarray(values_ns, np.int64)
        if not len(values):
            return
        us = np.clip(values // 1000, LOWEST_US, HIGHEST_US)
        # frexp's exponent is the bit length: exact, as all values are below 2**53
        bits = np.frexp((us | self._mask).astype(np.float64))[1]
        bucket = bits.astype(np.int64) - (self._shift + 1)
        np.add.at(self._counts, (bucket << self._shift) + (us >> bucket), 1)
        self.count += len(values)
        self._sum_ns += int(values.sum())
        self._max_ns = max(self._max_ns, int(values.max()))

    def latency(self) -> Latency | None:
        """Percentiles by nearest rank, true mean and maximum; None when nothing was recorded."""
        if self.count == 0:
            return None
        used = np.nonzero(self._counts)[0]
        sums = self._counts[used].cumsum()

        def percentile_ms(percent: float) -> float:
            rank = max(1, int(np.ceil(percent / 100 * self.count)))
            index = int(used[np.searchsorted(sums, rank)])
            top_us: int = self._hdr.get_highest_equivalent_value(
                self._hdr.get_value_from_index(index)
            )
            return min(top_us * 1000, self._max_ns) / 1e6

        return Latency(
            count=self.count,
            mean_ms=self._sum_ns / self.count / 1e6,
            p50_ms=percentile_ms(50),
            p90_ms=percentile_ms(90),
            p95_ms=percentile_ms(95),
            p99_ms=percentile_ms(99),
            max_ms=self._max_ns / 1e6,
            hdr=self._encoded(used),
        )

    def _encoded(self, used: npt.NDArray[np.int64]) -> str:
        """Version 2 of the HDR encoding, deflated, in base 64; `HdrHistogram.decode` reads it."""
        self._hdr.set_internal_tacking_values(int(used[0]), int(used[-1]), 0)
        self._hdr.total_count = self.count
        encoded: bytes = self._hdr.encode()
        return encoded.decode("ascii")
