"""What a prefix cache came to hold and no longer holds, for whoever sends requests here.

Only each `stride`-th block of a chain is watched. Nobody need ask: what is not taken is bounded,
and then the next messages say everything anew.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

MOST_DIGESTS = 4096
"""In one message."""


@dataclass(frozen=True, slots=True)
class HeldChanges:
    """Digests that were added and removed since the last message. With a `whole` one all begins
    anew: nothing is held but what it adds, and the messages after it."""

    whole: bool
    added: tuple[bytes, ...]
    removed: tuple[bytes, ...]


class HeldPrefixes:
    """Watches one cache, on the device and in CPU memory alike."""

    def __init__(self, stride: int) -> None:
        assert stride > 0, stride
        self._stride = stride
        self._held: OrderedDict[bytes, None] = OrderedDict()
        self._changed: dict[bytes, None] = {}
        self._overflown = True  # nothing was said yet

    @property
    def has_news(self) -> bool:
        """Whether `take` would say anything."""
        return self._overflown or bool(self._changed)

    @property
    def digests(self) -> frozenset[bytes]:
        """All that are held."""
        return frozenset(self._held)

    def came(self, digest: bytes, depth: int) -> None:
        """The cache holds the block that is `depth`-th of its chain, from 1; 0: not known."""
        if depth and depth % self._stride == 0 and digest not in self._held:
            self._held[digest] = None
            self._note(digest)

    def went(self, digest: bytes) -> None:
        """The cache holds it no more; one that is not watched is no matter."""
        if digest in self._held:
            del self._held[digest]
            self._note(digest)

    def flushed(self) -> None:
        """The cache is empty."""
        self._held.clear()
        self._changed.clear()
        self._overflown = True

    def take(self, whole: bool = False) -> HeldChanges:
        """What is to be said now, at most MOST_DIGESTS; the next call goes on from here. `whole`:
        all from the beginning, because an earlier message may have been lost."""
        whole, self._overflown = whole or self._overflown, False
        if whole:
            self._changed = dict.fromkeys(self._held)
        said = list(islice(self._changed, MOST_DIGESTS))
        for digest in said:
            del self._changed[digest]
        added = tuple(one for one in said if one in self._held)
        removed = tuple(one for one in said if one not in self._held)
        return HeldChanges(whole, added, removed)

    def _note(self, digest: bytes) -> None:
        if self._overflown:
            return
        self._changed[digest] = None
        if len(self._changed) > len(self._held) + MOST_DIGESTS:
            self._changed.clear()
            self._overflown = True
