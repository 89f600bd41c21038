"""Noise: what iterations of the engine loop take beyond their fitted cost, stalls included.

Noise is correlated in time, and short iterations have more of it, relative to their cost, than
long ones. So it is drawn in intervals of iterations, and by bins of cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Annotated, NamedTuple, Protocol

import numpy as np

from telemetry.numbers.quantiles import quantile_sorted

INTERVAL_ITERATIONS: Annotated[
    int, "iterations", "drawn from one place of the record",
    "by hand: noise of a machine lasts for some tenths of a second",
] = 20  # fmt: skip
NOISE_BINS: Annotated[
    int, "bins", "of cost, by count, and as many by time",
    "by hand: each has enough iterations to draw from, in a journal of a minute",
] = 12  # fmt: skip
STALL: Annotated[
    float, "of its cost", "an iteration that takes longer has a stall in it",
    "by hand: above the longest that a slow processor makes a step, in development records",
] = 2.0  # fmt: skip


class Disturbance(NamedTuple):
    """What disturbed the iteration that began at `begin_ns`: its predicted cost, its span over that
    cost, the gap after it, and the recorded step that it computed (-1: none), which began earlier
    where steps overlap."""

    begin_ns: int
    cost_ns: int
    ratio: float
    gap_ns: int
    step_id: int = -1

    def span_ns(self, cost_ns: int) -> int:
        """Span of an iteration with another cost under the same noise. Up to `STALL` noise is in
        proportion to the cost; the rest is a stall, as long as it was."""
        slow = min(self.ratio, STALL)
        return int(slow * cost_ns + (self.ratio - slow) * self.cost_ns)


class Noise(Protocol):
    """A source of noise for iterations."""

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        """Noise of an iteration that begins at `now_ns` and costs `cost_ns`; None: no noise."""
        ...


class NoNoise:
    """No noise: every iteration takes its fitted cost."""

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        return None


class RecordedNoise:
    """Recorded noise: an iteration has that of the recorded one that began nearest to it, so stalls
    come when they came."""

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
    """Noise drawn from the recorded one, in intervals of 20 iterations from a random place of the
    record. In an interval each iteration has the noise of the next recorded one with about its
    cost. A replay of the recorded iterations takes as long in total as they took."""

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
            _scale_to_total(self._disturbances, alike)
        places = range(len(self._tops_ns) + 1)
        self._nearest = [min(bins, key=lambda known: abs(known - one)) for one in places if bins]
        self._next = dict.fromkeys(bins, 0)

    def at(self, now_ns: int, cost_ns: int) -> Disturbance | None:
        if not self._disturbances:
            return None
        if not self._left:
            self._begin_interval()
        self._left -= 1
        number = self._nearest[bisect_left(self._tops_ns, cost_ns)]
        alike = self._bins[number]
        place = alike[self._next[number] % len(alike)]
        self._next[number] += 1
        return self._disturbances[place]

    def _begin_interval(self) -> None:
        """Continue, in every bin, from one place of the record."""
        self._left = INTERVAL_ITERATIONS
        since = self._random.randrange(len(self._disturbances))
        self._next = {n: bisect_left(alike, since) for n, alike in self._bins.items()}


def _tops_ns(disturbances: Sequence[Disturbance]) -> list[int]:
    """Upper ends of the bins of cost, by quantiles of count and of time: most iterations only
    decode, and most time goes to prompts."""
    ordered = sorted(one.cost_ns for one in disturbances) or [0]
    sums_ns = list(accumulate(ordered))
    parts = range(1, NOISE_BINS)
    by_count = {quantile_sorted(ordered, part / NOISE_BINS) or 0 for part in parts}
    by_time = {ordered[bisect_left(sums_ns, sums_ns[-1] * part // NOISE_BINS)] for part in parts}
    return sorted(by_count | by_time)


def _scale_to_total(disturbances: list[Disturbance], alike: Sequence[int]) -> None:
    """Scale the noise of one bin, so that what is drawn from it adds up to what was recorded.

    It would not by itself: intervals begin anywhere, so an iteration is drawn more often the longer
    none of its bin came before it, and the first of a burst differ from those that follow; and an
    iteration has the cost of its own load where it was recorded, not where it is drawn. Stalls are
    not scaled.
    """
    places = np.array(alike)
    slow = np.array([min(disturbances[place].ratio, STALL) for place in alike])
    costs_ns = np.array([disturbances[place].cost_ns for place in alike], dtype=np.float64)
    begins = np.diff(places, prepend=places[-1] - len(disturbances))  # after which it comes first
    _, ranks = np.unique(places // INTERVAL_ITERATIONS, return_counts=True)
    weight = np.zeros(len(alike))
    for rank in range(int(ranks.max())):
        weight += (ranks > rank).sum() * np.roll(begins, rank)
    scale = float((slow @ costs_ns / costs_ns.sum()) / (slow @ weight / weight.sum()))
    for place in alike:
        one = disturbances[place]
        if one.ratio < STALL:
            disturbances[place] = one._replace(ratio=one.ratio * scale)
