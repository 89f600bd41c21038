"""Which engines hold which prefixes, as far as the router knows.

Two sources, one index: what engines report (`PrefixChanges`), and what this router sent, which is
believed until the engine reports that it is gone. An engine that reports no prefixes is known by
the second alone: what was not used for longest is forgotten as its cache would.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, KeysView

MOST_ANCHORS = 16_384
"""Of one engine. With blocks of 16 tokens it is a million tokens of cache."""


class PrefixIndex:
    """Owns both directions: anchor to engines (`holders`, for reading), engine to anchors."""

    def __init__(self) -> None:
        self.holders: dict[int, dict[int, None]] = {}
        self._held: dict[int, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return len(self.holders)

    def held(self, index: int) -> KeysView[int]:
        """Anchors that an engine is believed to hold."""
        return self._held.get(index, OrderedDict()).keys()

    def add(self, index: int, anchors: Iterable[int], most: int = MOST_ANCHORS) -> None:
        """An engine holds these. What was added longest ago beyond `most` is forgotten."""
        held = self._held.setdefault(index, OrderedDict())
        for anchor in anchors:
            if anchor in held:
                held.move_to_end(anchor)
                continue
            held[anchor] = None
            self.holders.setdefault(anchor, {})[index] = None
        while len(held) > most:
            self._unlink(index, held.popitem(last=False)[0])

    def remove(self, index: int, anchors: Iterable[int]) -> None:
        """An engine holds these no more; those that it was not believed to hold are no matter."""
        held = self._held.get(index)
        if held is None:
            return
        for anchor in anchors:
            if anchor in held:
                del held[anchor]
                self._unlink(index, anchor)

    def replace(self, index: int, anchors: Iterable[int], most: int = MOST_ANCHORS) -> None:
        """An engine holds these and no others."""
        kept = set(anchors)
        self.remove(index, [one for one in self.held(index) if one not in kept])
        self.add(index, anchors, most)

    def forget(self, index: int) -> None:
        """An engine is gone."""
        for anchor in self._held.pop(index, ()):
            self._unlink(index, anchor)

    def matches(self, anchors: tuple[int, ...]) -> Iterator[tuple[int, dict[int, None]]]:
        """How many of a prompt's anchors are held, and by whom, the most first. Engines that hold
        more are among the holders of less."""
        holders_of = self.holders
        for depth in range(len(anchors), 0, -1):
            holders = holders_of.get(anchors[depth - 1])
            if holders:
                yield depth, holders

    def check(self) -> None:
        """Both directions agree; raises AssertionError."""
        there = {(anchor, index) for index, held in self._held.items() for anchor in held}
        here = {(anchor, index) for anchor, found in self.holders.items() for index in found}
        assert here == there, sorted(here ^ there)[:4]
        assert all(self.holders.values()), "an anchor that nobody holds"

    def _unlink(self, index: int, anchor: int) -> None:
        holders = self.holders[anchor]
        del holders[index]
        if not holders:
            del self.holders[anchor]
