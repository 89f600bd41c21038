"""What turns of the loop take beyond their cost: the machine's noise, stalls and all.

It comes in spells, and short turns have more of it, relative to what they cost, than long ones.
So it is drawn neither turn by turn nor from turns of any length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

_SPELL_TURNS = 20
_BINS = 8
# times its cost; a turn that takes longer is no slow one
STALL = 2.0


class Disturbance(NamedTuple):
    """Of the turn that began at `begin_ns`: its cost as foretold, its span over that, and the
    gap behind it."""

    begin_ns: int
    cost_ns: int
    ratio: float
    gap_ns: int

    def span_ns(self, cost_ns: int) -> int:
        """Of a turn of another cost under it. A slow machine slows all in proportion; what takes
        more than that was a stall, which is as long whatever it interrupts."""
        slow = min(self.ratio, STALL)
        return int(slow * cost_ns + (self.ratio - slow) * self.cost_ns)


class Noise(Protocol):
    """What disturbs a turn."""

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        """The turn that begins then and should take so long; None: it does."""
        ...


class NoNoise:
    """Nothing ever happens."""

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        return None


class RecordedNoise:
    """At each moment what it was then: a turn is disturbed as the recorded one was that began
    nearest to it. Stalls come when they came."""

    def __init__(self, disturbances: Sequence[Disturbance]) -> None:
        self._disturbances = disturbances
        self._begins_ns = [one.begin_ns for one in disturbances]

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        known = self._disturbances
        if not known:
            return None
        place = bisect_left(self._begins_ns, now_ns)
        around = known[max(0, place - 1) : place + 1]
        return min(around, key=lambda one: abs(one.begin_ns - now_ns))


class DrawnNoise:
    """Of the same kind, drawn in spells, so that what lasted lasts. Within a spell each turn is
    disturbed as the next recorded one of about its own cost."""

    def __init__(self, disturbances: Sequence[Disturbance], seed: int) -> None:
        self._disturbances = disturbances
        self._random = Random(seed)
        self._left = 0
        ordered = sorted(one.cost_ns for one in disturbances) or [0]
        self._tops_ns = sorted({ordered[len(ordered) * n // _BINS] for n in range(1, _BINS)})
        bins: dict[int, list[int]] = {}
        for place, one in enumerate(disturbances):
            bins.setdefault(bisect_left(self._tops_ns, one.cost_ns), []).append(place)
        self._bins = bins
        places = range(len(self._tops_ns) + 1)
        self._nearest = [min(bins, key=lambda known: abs(known - one)) for one in places if bins]
        self._next = dict.fromkeys(bins, 0)

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        if not self._disturbances:
            return None
        if not self._left:
            self._begin_spell()
        self._left -= 1
        number = self._nearest[bisect_left(self._tops_ns, cost_ns)]
        alike = self._bins[number]
        place = alike[self._next[number] % len(alike)]
        self._next[number] += 1
        return self._disturbances[place]

    def _begin_spell(self) -> None:
        """Go on, in every bin, from one moment of the record."""
        self._left = _SPELL_TURNS
        since = self._random.randrange(len(self._disturbances))
        self._next = {n: bisect_left(alike, since) for n, alike in self._bins.items()}
