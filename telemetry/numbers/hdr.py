"""HDR histograms, 1 us to 1 h in three significant digits, as numpy arrays.

`hdrhistogram` gives the layout, and the encoding that other tools read. Recording, percentiles and
merging are done here with numpy: its own methods take milliseconds, round a merged maximum up to
the top of its counter, and take the minimum of an empty histogram for a value.

`exponential_buckets` gives the same values as Prometheus' native histograms and OTLP have them.
Their bucket bounds grow by 2**(2**-schema): bucket i is (base**(i-1), base**i] in Prometheus and
(base**i, base**(i+1)] in OTLP. A counter is narrower than a bucket: its middle decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

from telemetry.numbers.quantiles import Percentiles, rank

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3
COUNTERS = 23_552
PAGE = 1024
_SHIFT = 10
_MASK = 2 * PAGE - 1
_FEW = 24  # values that are counted faster without numpy

NATIVE_SCHEMA = 7
"""Prometheus: buckets grow by 0.54 %, so a quantile is off by less than 1 %. At most 4,060 buckets
from 1 us to 1 h."""
OTLP_SCALE = 5
"""OTLP: buckets grow by 2.2 %; empty ones in between are sent too."""

Ints = npt.NDArray[np.int64]


def index_of(value_ns: int) -> int:
    """The counter of a value; below 1 us it counts as 1 us, above an hour as an hour."""
    value_us = min(max(value_ns // 1000, LOWEST_US), HIGHEST_US)
    octave = (value_us | _MASK).bit_length() - (_SHIFT + 1)
    return (octave << _SHIFT) + (value_us >> octave)


def indices_of(values_ns: Ints) -> Ints:
    """`index_of` of an array."""
    values_us = np.clip(values_ns // 1000, LOWEST_US, HIGHEST_US)
    # frexp's exponent is the bit length: exact, as all values are below 2**53
    bits = np.frexp((values_us | _MASK).astype(np.float64))[1]
    octave = bits.astype(np.int64) - (_SHIFT + 1)
    found: Ints = (octave << _SHIFT) + (values_us >> octave)
    return found


def _edges() -> tuple[Ints, Ints]:
    """Lowest value and width of each counter, (COUNTERS,) each, in us."""
    index = np.arange(COUNTERS, dtype=np.int64)
    octave = np.maximum((index >> _SHIFT) - 1, 0)
    low = np.where(index < PAGE, index, (index & (PAGE - 1)) + PAGE) << octave
    return low, np.left_shift(np.int64(1), octave)


LOW_US, WIDTH_US = _edges()


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Values as counters. `indices` (n,) are the counters that are not 0, in order, and `counts`
    (n,) what they hold. Sum and maximum are exact, in ns."""

    indices: Ints
    counts: Ints
    count: int
    sum_ns: int
    max_ns: int

    def percentiles(self) -> Percentiles:
        """Percentiles in ns, by nearest rank, each at the top of its counter but never above the
        maximum."""
        if not self.count:
            return Percentiles(0, None, None, None, None)
        p50, p90, p95, p99, p999 = self.at((0.5, 0.9, 0.95, 0.99, 0.999))
        return Percentiles(self.count, p50, p95, p99, self.max_ns, p90_ns=p90, p999_ns=p999)

    def at(self, shares: Sequence[float]) -> list[int]:
        """The quantiles at `shares`, in ns. There must be at least one value."""
        sums = self.counts.cumsum()
        ranks = [rank(share, self.count) for share in shares]
        places = self.indices[np.searchsorted(sums, ranks)]
        tops_ns = (LOW_US[places] + WIDTH_US[places] - 1) * 1000
        return [min(int(top_ns), self.max_ns) for top_ns in tops_ns]

    def at_most(self, bounds_ns: Iterable[int]) -> list[int]:
        """How many values are at most each bound (to the layout's 0.1 %)."""
        sums = np.concatenate(([0], self.counts.cumsum()))
        limits = [index_of(bound_ns) for bound_ns in bounds_ns]
        return [int(sums[k]) for k in np.searchsorted(self.indices, limits, side="right")]


class Recorder:
    """Counters that values in ns are added to. For one thread."""

    def __init__(self) -> None:
        self._counts: Ints = np.zeros(COUNTERS, np.int64)
        self._count = self._sum_ns = self._max_ns = 0

    def record(self, values_ns: Ints | list[int]) -> None:
        """Add values; below 1 us they count as 1 us, above an hour as an hour."""
        values = np.asarray(values_ns, np.int64)
        if not len(values):
            return
        np.add.at(self._counts, indices_of(values), 1)
        self._count += len(values)
        self._sum_ns += int(values.sum())
        self._max_ns = max(self._max_ns, int(values.max()))

    def distribution(self) -> Distribution:
        """All recorded values."""
        used = np.nonzero(self._counts)[0]
        return Distribution(used, self._counts[used], self._count, self._sum_ns, self._max_ns)


_NOTHING: Ints = np.zeros(0, np.int64)
EMPTY = Distribution(_NOTHING, _NOTHING, 0, 0, 0)


def distribution_of(values_ns: list[int]) -> Distribution:
    """The distribution of a list of values in ns."""
    if not values_ns:
        return EMPTY
    if len(values_ns) < _FEW:
        found: dict[int, int] = {}
        for value_ns in values_ns:
            index = index_of(value_ns)
            found[index] = found.get(index, 0) + 1
        order = sorted(found)
        indices = np.array(order, np.int64)
        counts = np.array([found[index] for index in order], np.int64)
    else:
        indices, counts = np.unique(indices_of(np.array(values_ns, np.int64)), return_counts=True)
    return Distribution(
        indices, counts.astype(np.int64), len(values_ns), sum(values_ns), max(values_ns)
    )


def merged(parts: Iterable[Distribution]) -> Distribution:
    """The distribution of all values of all parts."""
    parts_with_values = [part for part in parts if part.count]
    if len(parts_with_values) < 2:
        return parts_with_values[0] if parts_with_values else EMPTY
    low = min(int(part.indices[0]) for part in parts_with_values)
    high = max(int(part.indices[-1]) for part in parts_with_values)
    dense = np.zeros(high - low + 1, np.int64)
    for part in parts_with_values:
        dense[part.indices - low] += part.counts
    used = np.nonzero(dense)[0]
    return Distribution(
        used + low,
        dense[used],
        sum(part.count for part in parts_with_values),
        sum(part.sum_ns for part in parts_with_values),
        max(part.max_ns for part in parts_with_values),
    )


@cache
def _bucket_of(schema: int) -> Ints:
    """The Prometheus bucket, in seconds, of each HDR counter, (COUNTERS,)."""
    middle_s = (LOW_US + WIDTH_US / 2) / 1e6
    found: Ints = np.ceil(np.log2(middle_s) * 2**schema).astype(np.int64)
    return found


def exponential_buckets(values: Distribution, schema: int) -> tuple[Ints, Ints]:
    """Prometheus' indices of the buckets that are not empty, in order, and their counts, (n,)
    each."""
    if not values.count:
        return values.indices, values.counts
    buckets = _bucket_of(schema)[values.indices]
    starts = np.concatenate(([0], np.nonzero(np.diff(buckets))[0] + 1))
    return buckets[starts], np.add.reduceat(values.counts, starts)


def encode(values: Distribution) -> str:
    """Version 2 of the HDR encoding, deflated, in base 64; in us. Sum and maximum are not in it."""
    store = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    if values.count:
        counters = np.frombuffer(store.counts, np.uint64)
        counters[values.indices] = values.counts
        store.set_internal_tacking_values(
            int(values.indices[0]), int(values.indices[-1]), values.count
        )
    encoded: bytes = store.encode()
    return encoded.decode("ascii")


def decode(encoded: str, sum_ns: int, max_ns: int) -> Distribution:
    """The inverse of `encode`, with the sum and maximum that are sent beside it.

    Raises ValueError when the encoding is of another layout.
    """
    store = HdrHistogram.decode(encoded)
    layout = (store.lowest_trackable_value, store.highest_trackable_value)
    if layout != (LOWEST_US, HIGHEST_US) or store.significant_figures != DIGITS:
        raise ValueError(f"a histogram of {layout[0]} to {layout[1]} us cannot be merged with ours")
    dense = np.frombuffer(store.counts, np.uint64).astype(np.int64)
    indices = np.nonzero(dense)[0]
    counts = dense[indices]
    return Distribution(indices, counts, int(counts.sum()), sum_ns, max_ns)
