"""Which prefixes an engine computed lately, so that it should have them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from diagnosis.routed.thresholds import SEEN_NS

_KEPT = 262_144


class ComputedPrefixes:
    """Anchors of prompts by engine, and when they were last computed or found there. An engine is
    known by its name: what it held before it started again counts as held."""

    def __init__(self) -> None:
        self._at: OrderedDict[tuple[str, int], int] = OrderedDict()

    def depth(self, engine: str, anchors: Sequence[int], at_ns: int) -> int:
        """How many of a prompt's anchors, from the first on, the engine had in the last SEEN_NS."""
        for depth, anchor in enumerate(anchors):
            computed_ns = self._at.get((engine, anchor))
            if computed_ns is None or at_ns - computed_ns > SEEN_NS:
                return depth
        return len(anchors)

    def computed(self, engine: str, anchors: Sequence[int], at_ns: int) -> None:
        """A prompt's first token has come, so the engine has all of it."""
        for anchor in anchors:
            self._at[engine, anchor] = at_ns
            self._at.move_to_end((engine, anchor))
        while len(self._at) > _KEPT:
            self._at.popitem(last=False)
