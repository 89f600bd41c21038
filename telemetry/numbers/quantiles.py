"""The one definition of a quantile: nearest rank.

The quantile at share q of some values is the smallest of them such that at least the share q
of all is less than or equal to it. It is always a value that was measured, it needs no
assumption about what lies between two values, and it is the rule by which HDR histograms count
up to a rank: a figure from raw values and one from a histogram of the same values differ by the
histogram's resolution and by nothing else. The median of an even number is thus the lower of the
two in the middle.

Medians of A/B ratios in benchmarks are `statistics.median`, which is a definition of its own;
latencies, lengths and everything shown as p50, p95 or p99 come from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

Number = TypeVar("Number", int, float)

# 0.07 * 100 is 7.000000000000001 in floating point: a product this near to an integer is one
_SAME = 1e-12


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of `count` values in ns; None without values."""

    count: int
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    p90_ns: int | None = None
    p999_ns: int | None = None


def rank(share: float, count: int) -> int:
    """The rank, from 1, of the quantile at `share` among `count` values in ascending order."""
    exact = share * count
    whole = round(exact)
    place = whole if math.isclose(exact, whole, rel_tol=_SAME) else math.ceil(exact)
    return min(count, max(1, place))


def quantile(values: Iterable[Number], share: float) -> Number | None:
    """The quantile at `share`, from 0 (the minimum) to 1 (the maximum); None without values."""
    return quantile_sorted(sorted(values), share)


def quantile_sorted(ordered: Sequence[Number], share: float) -> Number | None:
    """`quantile` of values in ascending order."""
    return ordered[rank(share, len(ordered)) - 1] if len(ordered) else None


def median(values: Iterable[Number]) -> Number | None:
    """The quantile at 0.5; None without values."""
    return quantile(values, 0.5)
