"""One SLO class over the last minutes: since when it is missed, and when it is met again.

It is missed when both windows say so: the long one that the misses are more than chance and more
than the whole window's error budget, the short one that they go on. The time that the long window
has not seen yet counts as good, so that a blip after the start that its budget allows is none. It
is met again after a run of good requests that chance would not give, and is then judged afresh.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from math import log
from typing import NamedTuple

from diagnosis.promises.chance import clump, evidence, good_run
from diagnosis.promises.thresholds import (
    LEAST_MISSED,
    LEAST_REQUESTS,
    LONG_NS,
    MOST_MISS,
    RECOVERED,
    SHORT_NS,
    STILL_NATS,
    SURE_NATS,
)

_ALTERNATIVE = 3.0  # times the allowed share: the onset is where so many misses begin to fit better


class Tick(NamedTuple):
    """What became known until `end_ns`, in the tick that ends there."""

    end_ns: int
    good: int
    missed: int


class Shares(NamedTuple):
    """Requests of a window that are known to be good or to have missed, and how many misses come
    together."""

    requests: int
    missed: int
    together: float

    @property
    def share(self) -> float:
        return self.missed / self.requests if self.requests else 0.0


class Attainment:
    """Counts requests of one class. `running` are live ones that have not missed so far, and had
    their first token; `overdue` are live ones that wait for it beyond the target. `onset_ns` is
    None while the class is met."""

    def __init__(self, objective: float, begin_ns: int) -> None:
        self.allowed = 1 - objective
        self.running = self.overdue = 0
        self.onset_ns: int | None = None
        self._begin_ns = begin_ns
        self._ticks: deque[Tick] = deque()
        self._good = self._missed = 0  # of the tick that is not over
        self._good_in_row = 0
        self._share = 0.0  # the share missed when the last one did

    def good(self) -> None:
        """A request has ended as promised."""
        self._good += 1
        self._good_in_row += 1

    def miss(self) -> None:
        """A request is known to have missed."""
        self._missed += 1
        self._good_in_row = 0

    def tick(self, end_ns: int) -> None:
        """The tick is over: judge."""
        if self._good or self._missed:
            self._ticks.append(Tick(end_ns, self._good, self._missed))
        has_missed, self._good, self._missed = self._missed > 0, 0, 0
        while self._ticks and self._ticks[0].end_ns <= end_ns - LONG_NS:
            self._ticks.popleft()
        if has_missed and self.onset_ns is None and self._is_sure(end_ns):
            self.onset_ns = self._onset_ns()
        if self.onset_ns is not None:
            short = self.short(end_ns)
            if has_missed:
                self._share = short.share
            if self._is_over(short):
                self._restart(end_ns)

    def short(self, end_ns: int) -> Shares:
        """The last 30 seconds."""
        since_ns = end_ns - SHORT_NS
        return self._shares(takewhile(lambda tick: tick.end_ns > since_ns, reversed(self._ticks)))

    def long(self) -> Shares:
        """The last five minutes, or less after the start."""
        return self._shares(self._ticks)

    def _shares(self, ticks: Iterable[Tick]) -> Shares:
        found = list(ticks)
        missed = [tick.missed for tick in found]
        requests = sum(tick.good for tick in found) + sum(missed) + self.running
        return Shares(requests, sum(missed), clump(missed))

    def _is_sure(self, end_ns: int) -> bool:
        long, short = self.long(), self.short(end_ns)
        if long.requests < LEAST_REQUESTS or short.missed < LEAST_MISSED:
            return False
        span_ns = max(1, min(LONG_NS, end_ns - self._begin_ns))
        budget = self.allowed * long.requests * LONG_NS / span_ns
        if long.missed <= budget and short.share <= MOST_MISS:
            return False
        return self._nats(short) >= STILL_NATS and self._nats(long) >= SURE_NATS

    def _nats(self, found: Shares) -> float:
        return evidence(found.missed, found.requests, self.allowed, found.together)

    def _is_over(self, short: Shares) -> bool:
        if not short.requests:
            return not self.overdue
        if short.share <= self.allowed and not self.overdue:
            return True
        return self._good_in_row >= good_run(self._share, RECOVERED)

    def _restart(self, end_ns: int) -> None:
        self.onset_ns, self._begin_ns, self._good_in_row = None, end_ns, 0
        self._ticks.clear()

    def _onset_ns(self) -> int:
        """Since when three times as many misses as allowed fit better than those allowed: the
        maximum of the likelihood over the moments of the change (Page, 1954)."""
        more = min(0.5, _ALTERNATIVE * self.allowed)
        if more <= self.allowed:  # an objective below one half: any moment is as good
            return next(tick.end_ns for tick in self._ticks if tick.missed)
        of_miss, of_good = log(more / self.allowed), log((1 - more) / (1 - self.allowed))
        best, best_ns, total = float("-inf"), self._ticks[-1].end_ns, 0.0
        for tick in reversed(self._ticks):
            total += tick.missed * of_miss + tick.good * of_good
            if tick.missed and total > best:
                best, best_ns = total, tick.end_ns
        return best_ns
