"""The one definition of a quantile: nearest rank.

The quantile at share q of some values is the smallest of them such that at least the share q
of all is less than or equal to it. It is always a value that was measured, it needs no
assumption about what lies between two values, and it is the rule by which HDR histograms count
up to a rank: a figure from raw values and one from a histogram of the same values differ by the
histogram's resolution and by nothing else. The median of an even number is thus the lower of the
two in the middle.

Medians of A/B ratios in benchmarks are `statistics.median`, which is a definition of its own;
latencies, lengths and whatever is shown as p50, p95 or p99 come from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

Number = TypeVar("Number", int, float)

# 0.07 * 100 is 7.000000000000001 in binary; a product this near to a whole number is meant as it
_SAME = 1e-12


class Percentiles(msgspec.Struct, frozen=True):
    """Of one measure over some time, in ns. `count` 0 leaves the others None."""

    count: int
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    p90_ns: int | None = None
    p999_ns: int | None = None


def rank(share: float, count: int) -> int:
    """The place, from 1, of the quantile at `share` among `count` values in order of size."""
    exact = share * count
    whole = round(exact)
    place = whole if math.isclose(exact, whole, rel_tol=_SAME) else math.ceil(exact)
    return min(count, max(1, place))


def quantile(values: Iterable[Number], share: float) -> Number | None:
    """None of nothing. `share` is from 0 (the least) to 1 (the greatest)."""
    return quantile_sorted(sorted(values), share)


def quantile_sorted(ordered: Sequence[Number], share: float) -> Number | None:
    """`quantile` of values that are in order already."""
    return ordered[rank(share, len(ordered)) - 1] if len(ordered) else None


def median(values: Iterable[Number]) -> Number | None:
    """The quantile at one half; None of nothing."""
    return quantile(values, 0.5)
