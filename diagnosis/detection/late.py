"""Late tokens: the few gaps, first tokens and deliveries that a mean does not show.

A gap is late above the target of its class. A first token and a delivery are late where they take
much longer than the baseline's 95th percentile: requests that wait for twice as long are harmed,
whatever the target allows. Of every token only a comparison is made; work is done for late ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

import msgspec
import numpy as np

from diagnosis.detection.request_state import RequestState
from diagnosis.detection.steps import Steps
from diagnosis.detection.tail_thresholds import (
    AT_ONCE_NS,
    FIRST_QUANTILE,
    GAP_QUANTILE,
    LATE_GAP_RATIO,
    LATE_ORDER_NS,
    LATE_RATIO,
    LEAST_LATE_DELIVERY_NS,
    LEAST_LATE_FIRST_NS,
    LEAST_SAMPLES,
)
from telemetry.numbers.quantiles import quantile

_KEPT = 4_096  # late tokens
_KEPT_SAMPLES = 8_192
NEVER_NS = 1 << 62  # later than anything


class LateKind(StrEnum):
    """What was late: `above_ns` of each is requests' time."""

    GAP = "gap"
    FIRST = "first"
    DELIVERY = "delivery"


class Tails(msgspec.Struct, frozen=True, kw_only=True):
    """The tails of a baseline: percentiles of the gaps (weighted by rows), of first tokens by class
    ("" is all of them) and of deliveries, in ns; the mean time of a request before its submission
    and to its first token. None, or an absent class: too few to say. `most_at_once` is the largest
    number of requests that came within AT_ONCE_NS, `blows_per_s` how often each cause made requests
    late."""

    gap_high_ns: float | None = None
    first_high_ns: dict[str, int] = {}
    delivery_high_ns: int | None = None
    ingest_ns: float = 0.0
    first_ns: float = 0.0
    most_at_once: int = 0
    blows_per_s: dict[str, float] = {}

    def first_limit_ns(self, slo_class: str) -> int:
        """A first token of this class that takes longer is late."""
        high_ns = self.first_high_ns.get(slo_class) or self.first_high_ns.get("")
        return NEVER_NS if high_ns is None else max(LEAST_LATE_FIRST_NS, int(LATE_RATIO * high_ns))

    def gap_limit_ns(self, target_ns: int) -> int:
        """A gap that is longer is late."""
        high_ns = self.gap_high_ns
        return target_ns if high_ns is None else max(target_ns, int(LATE_GAP_RATIO * high_ns))

    @property
    def delivery_limit_ns(self) -> int:
        """A delivery that takes longer is late."""
        high_ns = self.delivery_high_ns
        if high_ns is None:
            return NEVER_NS
        return max(LEAST_LATE_DELIVERY_NS, int(LATE_RATIO * high_ns))


class Late(NamedTuple):
    """One late token: [begin, end) of its gap, of its way to the first token or of its delivery,
    and `limit_ns` above which it is late."""

    kind: LateKind
    request: RequestState
    begin_ns: int
    end_ns: int
    limit_ns: int

    @property
    def above_ns(self) -> int:
        return self.end_ns - self.begin_ns - self.limit_ns


class _First(NamedTuple):
    """A first token: its request's class and tenant, time before submission, and time to it."""

    at_ns: int
    slo_class: str
    tenant: str
    ingest_ns: int
    spent_ns: int


class Arrival(NamedTuple):
    """When a request came, and of whom."""

    begun_ns: int
    tenant: str


class LateLog:
    """Keeps the late tokens of the last minutes, and the times that percentiles are made of.

    `tails` are the limits in force; before there is a baseline only gaps can be late.
    """

    def __init__(self) -> None:
        self.late: deque[Late] = deque(maxlen=_KEPT)
        self.tails = Tails()
        self._firsts: deque[_First] = deque(maxlen=_KEPT_SAMPLES)
        self._deliveries: deque[tuple[int, int]] = deque(maxlen=_KEPT_SAMPLES)

    def first(self, request: RequestState, at_ns: int) -> None:
        """The first token of a request was committed."""
        spent_ns = at_ns - request.begun_ns
        ingest_ns = (request.submitted_ns or at_ns) - request.begun_ns
        self._firsts.append(_First(at_ns, request.slo_class, request.tenant, ingest_ns, spent_ns))
        limit_ns = self.tails.first_limit_ns(request.slo_class)
        if spent_ns > limit_ns:
            self.late.append(Late(LateKind.FIRST, request, request.begun_ns, at_ns, limit_ns))

    def gap(self, request: RequestState, begin_ns: int, end_ns: int) -> None:
        """A gap above the target of its class."""
        limit_ns = self.tails.gap_limit_ns(request.gap_target_ns)
        if end_ns - begin_ns > limit_ns:
            self.late.append(Late(LateKind.GAP, request, begin_ns, end_ns, limit_ns))

    def delivery(self, request: RequestState, begin_ns: int, end_ns: int) -> None:
        """The whole answer was delivered."""
        spent_ns, limit_ns = end_ns - begin_ns, self.tails.delivery_limit_ns
        self._deliveries.append((end_ns, spent_ns))
        if spent_ns > limit_ns:
            self.late.append(Late(LateKind.DELIVERY, request, begin_ns, end_ns, limit_ns))

    def between(self, begin_ns: int, end_ns: int) -> list[Late]:
        """The late tokens that ended within [begin, end), the last one first."""
        found: list[Late] = []
        for one in reversed(self.late):
            if one.end_ns < begin_ns - LATE_ORDER_NS:
                break
            if begin_ns <= one.end_ns < end_ns:
                found.append(one)
        return found

    def firsts_in(self, begin_ns: int, end_ns: int) -> int:
        """Requests with a first token within [begin, end)."""
        recent = takewhile(lambda one: one.at_ns >= begin_ns, reversed(self._firsts))
        return sum(one.at_ns < end_ns for one in recent)

    def arrivals(self, begin_ns: int) -> list[Arrival]:
        """Requests with a first token that came from `begin_ns` on, the earliest first."""
        edge_ns = begin_ns - LATE_ORDER_NS
        recent = takewhile(lambda one: one.at_ns >= edge_ns, reversed(self._firsts))
        found = [Arrival(one.at_ns - one.spent_ns, one.tenant) for one in recent]
        return sorted(one for one in found if one.begun_ns >= begin_ns)

    def fit(self, begin_ns: int, end_ns: int, steps: Steps) -> Tails:
        """The tails of a stretch with these steps."""
        edge_ns = begin_ns - LATE_ORDER_NS  # nearly in order: what is older need not be looked at
        firsts = list[_First]()
        for one in reversed(self._firsts):
            if one.at_ns < edge_ns:
                break
            if begin_ns <= one.at_ns < end_ns:
                firsts.append(one)
        firsts.reverse()
        by_class: dict[str, list[int]] = {"": [one.spent_ns for one in firsts]}
        for one in firsts:
            if one.slo_class:
                by_class.setdefault(one.slo_class, []).append(one.spent_ns)
        deliveries = list[int]()
        for at_ns, spent_ns in reversed(self._deliveries):
            if at_ns < edge_ns:
                break
            if begin_ns <= at_ns < end_ns:
                deliveries.append(spent_ns)
        each = max(1, len(firsts))
        return Tails(
            gap_high_ns=_high_gap_ns(steps),
            first_high_ns=_high(by_class),
            delivery_high_ns=_high({"": deliveries}).get(""),
            ingest_ns=sum(one.ingest_ns for one in firsts) / each,
            first_ns=sum(one.spent_ns for one in firsts) / each,
            most_at_once=_most_at_once(sorted(one.at_ns - one.spent_ns for one in firsts)),
        )


def largest_cluster(times_ns: Sequence[int], within_ns: int) -> tuple[int, int]:
    """[begin, end) of the places of as many ascending times as lie within `within_ns`; the first
    of several as large."""
    best, begin = (0, 0), 0
    for place, at_ns in enumerate(times_ns):
        while times_ns[begin] < at_ns - within_ns:
            begin += 1
        if place + 1 - begin > best[1] - best[0]:
            best = begin, place + 1
    return best


def _most_at_once(times_ns: Sequence[int]) -> int:
    begin, end = largest_cluster(times_ns, AT_ONCE_NS)
    return end - begin


def _high(groups: Mapping[str, Iterable[int]]) -> dict[str, int]:
    """The high percentile of each group that is large enough."""
    found: dict[str, int] = {}
    for name, spent_ns in groups.items():
        known = sorted(spent_ns)
        high_ns = quantile(known, FIRST_QUANTILE)
        if high_ns is not None and len(known) >= LEAST_SAMPLES:
            found[name] = high_ns
    return found


def _high_gap_ns(steps: Steps) -> float | None:
    """The high percentile of the gaps that the steps made, each with one of each decode row."""
    rows = steps.decode_rows
    total = float(rows.sum())
    if not total:
        return None
    order = np.argsort(steps.turn_ns)
    reached = np.cumsum(rows[order])
    place = int(np.searchsorted(reached, GAP_QUANTILE * total))
    return float(steps.turn_ns[order][min(place, len(order) - 1)])
