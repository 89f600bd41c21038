"""One SLO class over the last minutes: since when it is missed, and when it is met again.

It is missed when both windows say so: the long one that the misses are more than chance and more
than the whole window's error budget, the short one that they go on. The time that the long window
has not seen yet counts as good, so that a blip after the start that its budget allows is none. It
is met again when its requests since some moment are much more likely to be those of a class that
keeps its objective than those of one that misses as much as since the onset; it is then judged
afresh.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from math import log
from typing import NamedTuple

from diagnosis.promises.chance import clump, evidence
from diagnosis.promises.thresholds import (
    LEAST_MISSES,
    LEAST_REQUESTS,
    LONG_NS,
    MOST_MISS,
    MOST_SHARE,
    ONSET_RATIO,
    RECOVERED,
    SHORT_NS,
    STILL_NATS,
    SURE_NATS,
)


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
        self._since = [0, 0]  # good ones and misses since the onset
        self._recovery_nats = 0.0

    def good(self) -> None:
        """A request has ended as promised."""
        self._good += 1

    def miss(self) -> None:
        """A request is known to have missed."""
        self._missed += 1

    def tick(self, end_ns: int) -> None:
        """The tick is over: judge."""
        if self._good or self._missed:
            self._ticks.append(Tick(end_ns, self._good, self._missed))
        good, missed, self._good, self._missed = self._good, self._missed, 0, 0
        while self._ticks and self._ticks[0].end_ns <= end_ns - LONG_NS:
            self._ticks.popleft()
        if self.onset_ns is None:
            if missed and self._is_sure(end_ns):
                self.onset_ns = onset_ns = self._onset_ns()
                after = [tick for tick in self._ticks if tick.end_ns >= onset_ns]
                self._since = [sum(tick.good for tick in after), sum(tick.missed for tick in after)]
            return
        self._recover(good, missed)
        if self._is_over(end_ns):
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
        if long.requests < LEAST_REQUESTS or short.missed < LEAST_MISSES:
            return False
        span_ns = max(1, min(LONG_NS, end_ns - self._begin_ns))
        budget = self.allowed * long.requests * LONG_NS / span_ns
        if long.missed <= budget and short.share <= MOST_MISS:
            return False
        return self._nats(short) >= STILL_NATS and self._nats(long) >= SURE_NATS

    def _nats(self, found: Shares) -> float:
        return evidence(found.missed, found.requests, self.allowed, found.together)

    def _recover(self, good: int, missed: int) -> None:
        """Add the tick to the sum that says that the class is met again (a second CUSUM: so many
        times as likely are its requests if only the allowed share misses). It is compared with
        twice that share at least, or, where that were nearly all, with one between it and all."""
        self._since = [self._since[0] + good, self._since[1] + missed]
        share = self._since[1] / max(1, sum(self._since))
        least = min(2 * self.allowed, (1 + self.allowed) / 2)
        share = max(least, min(MOST_SHARE, share))
        if share >= 1:
            return
        of_good, of_miss = log((1 - self.allowed) / (1 - share)), log(self.allowed / share)
        nats = self._recovery_nats + good * of_good + missed * of_miss
        self._recovery_nats = max(0.0, nats)

    def _is_over(self, end_ns: int) -> bool:
        if self._recovery_nats >= -log(RECOVERED):
            return True
        return not self.short(end_ns).requests and not self.overdue

    def _restart(self, end_ns: int) -> None:
        self.onset_ns, self._begin_ns, self._recovery_nats = None, end_ns, 0.0
        self._ticks.clear()

    def _onset_ns(self) -> int:
        """Since when three times as many misses as allowed fit better than those allowed: the
        maximum of the likelihood over the moments of the change (Page, 1954)."""
        more = min(0.5, ONSET_RATIO * self.allowed)
        if more <= self.allowed:  # an objective below one half: any moment is as good
            return next(tick.end_ns for tick in self._ticks if tick.missed)
        of_miss, of_good = log(more / self.allowed), log((1 - more) / (1 - self.allowed))
        best, best_ns, total = float("-inf"), self._ticks[-1].end_ns, 0.0
        for tick in reversed(self._ticks):
            total += tick.missed * of_miss + tick.good * of_good
            if tick.missed and total > best:
                best, best_ns = total, tick.end_ns
        return best_ns
