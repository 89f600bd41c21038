"""What turns of the loop take beyond their cost: the machine's noise, stalls and all.

It comes in spells, and short turns have more of it, relative to what they cost, than long ones.
So it is drawn neither turn by turn nor from turns of any length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple, Protocol

import numpy as np

from telemetry.numbers.quantiles import quantile_sorted

_SPELL_TURNS = 20
_BINS = 12  # by turns, and as many by time
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
    disturbed as the next recorded one of about its own cost; were the recorded turns replayed, they
    would take as long in all as they took."""

    def __init__(self, disturbances: Sequence[Disturbance], seed: int) -> None:
        self._random = Random(seed)
        self._left = 0
        self._tops_ns = _tops_ns(disturbances)
        bins: dict[int, list[int]] = {}
        for place, one in enumerate(disturbances):
            bins.setdefault(bisect_left(self._tops_ns, one.cost_ns), []).append(place)
        self._bins = bins
        self._disturbances = list(disturbances)
        for alike in bins.values():
            _keep_total(self._disturbances, alike)
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


def _tops_ns(disturbances: Sequence[Disturbance]) -> list[int]:
    """Where bins of cost end, so that none has more than its part of the turns, nor of their time:
    most turns decode, and most time goes to prompts."""
    ordered = sorted(one.cost_ns for one in disturbances) or [0]
    sums_ns = list(accumulate(ordered))
    parts = range(1, _BINS)
    by_turns = {quantile_sorted(ordered, part / _BINS) or 0 for part in parts}
    by_time = {ordered[bisect_left(sums_ns, sums_ns[-1] * part // _BINS)] for part in parts}
    return sorted(by_turns | by_time)


def _keep_total(disturbances: list[Disturbance], alike: Sequence[int]) -> None:
    """Scale these, which are drawn for each other, so that what is drawn adds up to what they took.

    It would not by itself: spells begin anywhere, so a turn is drawn more often the longer none of
    its kind came before it, and the first of a burst are not like those that follow; and a turn
    counts for what it costs where it was recorded, but not where it is drawn. Stalls are left.
    """
    places = np.array(alike)
    slow = np.array([min(disturbances[place].ratio, STALL) for place in alike])
    costs_ns = np.array([disturbances[place].cost_ns for place in alike], dtype=np.float64)
    begins = np.diff(places, prepend=places[-1] - len(disturbances))  # after which it comes first
    _, ranks = np.unique(places // _SPELL_TURNS, return_counts=True)
    often = np.zeros(len(alike))
    for rank in range(int(ranks.max())):
        often += (ranks > rank).sum() * np.roll(begins, rank)
    scale = float((slow @ costs_ns / costs_ns.sum()) / (slow @ often / often.sum()))
    for place in alike:
        one = disturbances[place]
        if one.ratio < STALL:
            disturbances[place] = one._replace(ratio=one.ratio * scale)
