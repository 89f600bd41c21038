"""Sets of half-open intervals [begin, end) of nanoseconds, as sorted lists without overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """All that is in any of them."""
    found: list[Interval] = []
    for begin, end in sorted(one for one in intervals if one[0] < one[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """All that is in both; each is a union."""
    found: list[Interval] = []
    left = right = 0
    while left < len(one) and right < len(other):
        begin = max(one[left][0], other[right][0])
        end = min(one[left][1], other[right][1])
        if begin < end:
            found.append((begin, end))
        if one[left][1] <= other[right][1]:
            left += 1
        else:
            right += 1
    return found


def length_ns(intervals: Iterable[Interval]) -> int:
    """How long a union of intervals is, in ns."""
    return sum(end - begin for begin, end in intervals)
