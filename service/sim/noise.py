"""What turns of the loop take beyond their cost: the machine's noise, stalls and all.

It comes in spells, so it is not drawn turn by turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

_SPELL_TURNS = 20


class Disturbance(NamedTuple):
    """Of the turn that began at `begin_ns`: its span over its cost, and the gap behind it."""

    begin_ns: int
    ratio: float
    gap_ns: int


class Noise(Protocol):
    """What disturbs a turn."""

    def at(self, now_ns: int) -> Disturbance | None:
        """The turn that begins then; None for a turn that takes what it costs."""
        ...


class NoNoise:
    """Nothing ever happens."""

    def at(self, now_ns: int) -> Disturbance | None:
        return None


class RecordedNoise:
    """At each moment what it was then: stalls come when they came.

    A turn is disturbed as the recorded turn that had begun last was.
    """

    def __init__(self, disturbances: Sequence[Disturbance]) -> None:
        self._disturbances = disturbances
        self._begins_ns = [one.begin_ns for one in disturbances]

    def at(self, now_ns: int) -> Disturbance | None:
        place = bisect_right(self._begins_ns, now_ns) - 1
        return self._disturbances[max(0, place)] if self._disturbances else None


class DrawnNoise:
    """Of the same kind, drawn in spells, so that what lasted lasts."""

    def __init__(self, disturbances: Sequence[Disturbance], seed: int) -> None:
        self._disturbances = disturbances
        self._random = Random(seed)
        self._place = self._left = 0

    def at(self, now_ns: int) -> Disturbance | None:
        if not self._disturbances:
            return None
        if not self._left:
            self._place = self._random.randrange(len(self._disturbances))
            self._left = _SPELL_TURNS
        self._left -= 1
        self._place = (self._place + 1) % len(self._disturbances)
        return self._disturbances[self._place]
