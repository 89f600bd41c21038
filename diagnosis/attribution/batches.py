"""Batches: so many requests that came at once that those behind them had to wait.

Requests come at once by chance too. How many do is told by the rate of the moment (Poisson), and by
the most that came at once in the baseline, whose clients may start several together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from diagnosis.attribution.chance import binomial_tail
from diagnosis.attribution.thresholds import MANY, TENANT_SHARE
from diagnosis.detection.late import Arrival, Late, LateLog, largest_cluster
from diagnosis.detection.reference import Reference
from diagnosis.detection.tail_thresholds import (
    AT_ONCE_CHANCE,
    AT_ONCE_NS,
    AT_ONCE_RATE_S,
    BATCH_S,
    OF_ONE_CHANCE,
)

_SEEN_NS = int((BATCH_S + AT_ONCE_RATE_S) * 1e9)


class Batch(NamedTuple):
    """`requests` that came at once, the first of them at `begun_ns`. They are of one `tenant` if it
    is not None."""

    requests: int
    tenant: str | None
    begun_ns: int


class Batches:
    """Looks for batches before the late first tokens of one tick."""

    def __init__(self, log: LateLog, reference: Reference) -> None:
        self._log = log
        self._reference = reference
        self._since_ns: int | None = None
        self._arrivals: list[Arrival] = []
        self._times_ns: list[int] = []
        self._found: dict[tuple[int, int, int], Batch | None] = {}

    def before(self, late: Late) -> Batch | None:
        """The largest batch that came shortly before the request, or that it is part of."""
        self._look_back_to(late.begin_ns - _SEEN_NS)
        times_ns, until_ns = self._times_ns, late.begin_ns + AT_ONCE_NS
        first = bisect_left(times_ns, late.begin_ns - int(BATCH_S * 1e9))
        end = bisect_right(times_ns, until_ns)
        rate_from = bisect_left(times_ns, until_ns - int(AT_ONCE_RATE_S * 1e9))
        place = first, end, rate_from
        if place not in self._found:  # of a burst many are late
            self._found[place] = self._within(*place)
        return self._found[place]

    def _within(self, first: int, end: int, rate_from: int) -> Batch | None:
        """The largest batch of the arrivals [first, end), by the rate from `rate_from` on."""
        low, high = largest_cluster(self._times_ns[first:end], AT_ONCE_NS)
        if high - low <= max(1, self._reference.tails.most_at_once):
            return None
        batch = self._owned(self._arrivals[first + low : first + high])
        by_chance = self._by_chance(batch, self._arrivals[rate_from:end])
        return None if by_chance >= AT_ONCE_CHANCE else batch

    def _by_chance(self, batch: Batch, recent: Sequence[Arrival]) -> float:
        """How many such batches come before a late token by chance: requests with which as many
        others come. Of one tenant or of any other there would be as many."""
        number, tenant, _ = batch
        came = sum(tenant in (None, one.tenant) for one in recent) - number
        usual = self._reference.tenants_per_s
        if tenant is None:
            usual_per_s, owners = self._reference.requests_per_s, 1
        else:
            usual_per_s, owners = usual.get(tenant, 0.0), len(usual)
        per_s = max(usual_per_s, came / AT_ONCE_RATE_S)
        return owners * per_s * BATCH_S * poisson_tail(number - 1, per_s * AT_ONCE_NS / 1e9)

    def _look_back_to(self, since_ns: int) -> None:
        if self._since_ns is None or since_ns < self._since_ns:
            self._since_ns = since_ns
            self._arrivals = self._log.arrivals(since_ns)
            self._times_ns = [one.begun_ns for one in self._arrivals]
            self._found.clear()

    def _owned(self, arrivals: Sequence[Arrival]) -> Batch:
        """The batch of one tenant if most requests are its own, by more than chance; of many
        requests the first tell."""
        judged, usual = arrivals[:MANY], self._reference.tenants_per_s
        tenant, number = Counter(one.tenant for one in judged).most_common(1)[0]
        share = usual.get(tenant, 0.0) / max(1e-9, sum(usual.values()))
        is_most = number >= TENANT_SHARE * len(judged)
        is_chance = binomial_tail(number, len(judged), share) >= OF_ONE_CHANCE
        if len(usual) < 2 or not is_most or is_chance:
            return Batch(len(arrivals), None, arrivals[0].begun_ns)
        return Batch(number, tenant, arrivals[0].begun_ns)


def poisson_tail(least: int, mean: float) -> float:
    """The probability of at least so many, where `mean` are expected."""
    term, below = exp(-mean), 0.0
    for count in range(least):
        if not term:
            break
        below += term
        term *= mean / (count + 1)
    return max(0.0, 1.0 - below)
