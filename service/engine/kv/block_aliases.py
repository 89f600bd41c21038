"""Numbers in place of digests: what a record says of prompts that begin alike.

Replay has to know which blocks of text are equal, prefix and all, because the prefix cache
decides by that. A digest would tell, but who knows a text can check a digest for it. A number
that is given out in order of appearance tells only that two sequences share a beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockNames:
    """The book of numbers; bounded, the digest that was named longest ago is forgotten first.

    One that comes back gets a new number, and so does whatever follows it in a text: `kept` must
    be far beyond what the cache and its ghost can hold, or a replay misses a hit that there was.
    """

    def __init__(self, kept: int) -> None:
        assert kept > 0, kept
        self._kept = kept
        self._names: OrderedDict[bytes, tuple[int, int | None]] = OrderedDict()
        self._next = 0

    def of(self, digests: Sequence[bytes], parent: int | None = None) -> tuple[int, ...]:
        """One number for each digest of a chain that goes on from `parent`'s; equal chains,
        equal numbers."""
        found: list[int] = []
        for digest in digests:
            name, follows = self._names.get(digest, (None, None))
            if name is None or follows != parent:
                name = self._next
                self._next += 1
                self._names[digest] = (name, parent)
            self._names.move_to_end(digest)
            found.append(name)
            parent = name
        while len(self._names) > self._kept:
            self._names.popitem(last=False)
        return tuple(found)
