"""Block aliases: numbers that stand for digests in the record.

Replay has to know which blocks have equal text and equal prefixes, because the prefix cache
decides by that. A digest in the record could be compared with that of a guessed text. An alias is
a number given out in order of appearance, so it says only that two sequences begin alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

_LOOKED_AT = 8
"""Digests that may be dropped, for each that comes."""


class BlockAliases:
    """Aliases of the last `capacity` digests, least recently used dropped first, but for those that
    are kept for what `is_kept` says of them.

    A digest that was dropped gets a new alias, and so does what follows it in a text: if the prefix
    cache or its ghost knew it, replay would miss a recorded hit. So `capacity` must be more than
    these know and waiting prompts have.
    """

    def __init__(
        self, capacity: int, is_kept: Callable[[bytes], bool] = lambda digest: False
    ) -> None:
        assert capacity > 0, capacity
        self._capacity, self._is_kept = capacity, is_kept
        self._aliases: OrderedDict[bytes, tuple[int, int | None]] = OrderedDict()
        self._next = 0

    def of(self, digests: Sequence[bytes], parent: int | None = None) -> tuple[int, ...]:
        """One alias for each digest of a chain that follows the block with alias `parent`, None at
        the beginning of a text. Equal chains have equal aliases."""
        found: list[int] = []
        for digest in digests:
            alias, follows = self._aliases.get(digest, (None, None))
            if alias is None or follows != parent:
                alias = self._next
                self._next += 1
                self._aliases[digest] = (alias, parent)
            self._aliases.move_to_end(digest)
            found.append(alias)
            parent = alias
        self._drop(_LOOKED_AT * len(digests))
        return tuple(found)

    def _drop(self, most: int) -> None:
        """What is too much; looks at so many, so that no step waits for all."""
        for _ in range(most):
            if len(self._aliases) <= self._capacity:
                return
            digest, alias = self._aliases.popitem(last=False)
            if self._is_kept(digest):
                self._aliases[digest] = alias
