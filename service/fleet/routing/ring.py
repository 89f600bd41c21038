"""Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, SODA 2018).

A key belongs to the next engine on a ring of hashes; one that has too much is passed over. An
engine that joins or leaves moves only its own share of the keys.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator

POINTS = 32
"""Points of each engine on the ring: shares differ by about a sixth."""


def hash_of(*parts: str | int) -> int:
    """64 bits, the same in every process."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


class Ring:
    """Engine indices by points that follow from their names."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int]] = []
        self._of: dict[int, list[tuple[int, int]]] = {}

    def add(self, index: int, name: str) -> None:
        own = [(hash_of(name, number), index) for number in range(POINTS)]
        self._of[index] = own
        for point in own:
            insort(self._points, point)

    def remove(self, index: int) -> None:
        for point in self._of.pop(index, ()):
            del self._points[bisect_left(self._points, point)]

    def walk(self, key: int) -> Iterator[int]:
        """All engines, each once, from a key's own one on."""
        start = bisect_left(self._points, (key, -1))
        seen: set[int] = set()
        for number in range(len(self._points)):
            index = self._points[(start + number) % len(self._points)][1]
            if index not in seen:
                seen.add(index)
                yield index
