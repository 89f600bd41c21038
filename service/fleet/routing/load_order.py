"""Engines in the order of their load, kept sorted while single ones change."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice


class LoadOrder:
    """Engine indices by key, least first; of equal keys the lower index. A change of one of n takes
    log n comparisons and a move of at most n numbers: a microsecond for a thousand.

    Keys are whole numbers. They are kept as floats side by side: a search among objects would fetch
    each of them from memory.
    """

    def __init__(self) -> None:
        self._key_of: dict[int, float] = {}
        self._keys = array("d")
        self._indices = array("i")

    def __len__(self) -> int:
        return len(self._indices)

    def __contains__(self, index: int) -> bool:
        return index in self._key_of

    def set(self, index: int, key: int) -> None:
        """Put an engine where it belongs with this key."""
        old, new = self._key_of.get(index), float(key)
        if old == new:
            return
        keys, indices = self._keys, self._indices
        if old is not None:
            place = self._place(index, old)
            del keys[place], indices[place]
        self._key_of[index] = new
        place = self._place(index, new)
        keys.insert(place, new)
        indices.insert(place, index)

    def remove(self, index: int) -> None:
        """An engine is not to be chosen any more; one that is not here is left alone."""
        old = self._key_of.pop(index, None)
        if old is not None:
            place = self._place(index, old)
            del self._keys[place], self._indices[place]

    def least(self, count: int) -> Iterator[int]:
        """The `count` least loaded, least first."""
        return islice(self._indices, count)

    def up_to(self, more: int, count: int) -> list[int]:
        """The last `count` of those whose key is at most `more` above the least one."""
        end = bisect_right(self._keys, int(self._keys[0]) + more)
        return list(self._indices[max(0, end - count) : end])

    def at(self, place: int) -> int:
        """The engine at a place of the order."""
        return self._indices[place]

    def check(self) -> None:
        """The order is that of the keys; raises AssertionError."""
        right = sorted((key, index) for index, key in self._key_of.items())
        assert list(zip(self._keys, self._indices, strict=True)) == right

    def _place(self, index: int, key: float) -> int:
        """Where an engine with this key is, or belongs."""
        keys = self._keys
        place = bisect_left(keys, key)
        if place < len(keys) and keys[place] == key and self._indices[place] < index:
            place = bisect_left(self._indices, index, place, bisect_right(keys, key, place))
        return place
