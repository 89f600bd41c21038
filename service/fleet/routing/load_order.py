"""Engines in the order of their load, kept sorted while single ones change."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class LoadOrder:
    """Engine indices by key, least first. A change of one of n takes log n comparisons and a move
    of at most n pointers: a microsecond for a thousand."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int]] = []
        self._key_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, index: int) -> bool:
        return index in self._key_of

    def set(self, index: int, key: int) -> None:
        """Put an engine where it belongs with this key."""
        old = self._key_of.get(index)
        if old == key:
            return
        if old is not None:
            self._take_out(index, old)
        self._key_of[index] = key
        insort(self._sorted, (key, index))

    def remove(self, index: int) -> None:
        """An engine is not to be chosen any more; one that is not here is left alone."""
        old = self._key_of.pop(index, None)
        if old is not None:
            self._take_out(index, old)

    def least(self, count: int) -> list[int]:
        """The `count` least loaded, least first."""
        return [index for _, index in self._sorted[:count]]

    def up_to(self, more: int, count: int) -> list[int]:
        """The last `count` of those whose key is at most `more` above the least one."""
        end = bisect_right(self._sorted, (self._sorted[0][0] + more, 1 << 62))
        return [index for _, index in self._sorted[max(0, end - count) : end]]

    def at(self, place: int) -> int:
        """The engine at a place of the order."""
        return self._sorted[place][1]

    def _take_out(self, index: int, key: int) -> None:
        place = bisect_left(self._sorted, (key, index))
        assert self._sorted[place] == (key, index), (index, key)
        del self._sorted[place]
