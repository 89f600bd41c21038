"""A rare fault that comes back: is it there more often than in the baseline, and is it over?

Each *blow* is a moment at which one cause makes requests late. Blows are counted as a Poisson
process: the sum is a log likelihood ratio of a fault's rate to that of the baseline (CUSUM), so a
cause that the baseline has as often never fires. A fault that fired is one incident: it is held
between its blows, and is over when none came for several periods.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import log

from diagnosis.detection.counts import BUCKET_NS
from diagnosis.detection.tail_thresholds import (
    BLOW_NS,
    BLOWS_PER_S,
    BLOWS_RATIO,
    BLOWS_THRESHOLD,
    HELD_INTERVALS,
    KEPT_BLOWS,
    LEAST_BLOWS,
    LEAST_CONFIRMED,
    LEAST_HELD_NS,
    LEAST_LATE,
    MOST_HELD_NS,
    PRIOR_BLOWS,
    PRIOR_S,
)
from diagnosis.thresholds import LENGTHS_NS, SUM_CEILING
from telemetry.numbers.quantiles import median

_TICK_S = BUCKET_NS / 1e9


def blows_of(times_ns: Iterable[int]) -> list[int]:
    """The begins of blows among the times, in ascending order, of late tokens."""
    found: list[int] = []
    for at_ns in times_ns:
        if not found or at_ns - found[-1] >= BLOW_NS:
            found.append(at_ns)
    return found


def usual_rate(blows: float, seconds: float) -> float:
    """The rate of blows in a baseline that had some number of them. The more it had, the less the
    prior counts."""
    return (blows + PRIOR_BLOWS) / (seconds + PRIOR_S / (1 + blows))


class UsualBlows:
    """The blows of each cause in the normal time of the last LENGTHS_NS. A stretch of forty seconds
    lies between two bursts, or in one."""

    def __init__(self) -> None:
        self._stretches: deque[tuple[int, float, Counter[str]]] = deque()  # end, seconds, blows

    def add(self, span_ns: tuple[int, int], times_ns: Mapping[str, Iterable[int]]) -> None:
        """The blows of each cause within a stretch that may overlap those before."""
        known_ns = self._stretches[-1][0] if self._stretches else 0
        begin_ns, end_ns = max(known_ns, span_ns[0]), span_ns[1]
        if end_ns <= begin_ns:
            return
        new = Counter({name: sum(at >= begin_ns for at in times_ns[name]) for name in times_ns})
        self._stretches.append((end_ns, (end_ns - begin_ns) / 1e9, new))
        while self._stretches[0][0] <= end_ns - LENGTHS_NS:
            self._stretches.popleft()

    def rates_per_s(self) -> dict[str, float]:
        """Of each cause that had any."""
        seconds = sum(one for _, one, _ in self._stretches)
        total: Counter[str] = Counter()
        for _, _, blows in self._stretches:
            total.update(blows)
        return {name: usual_rate(blows, seconds) for name, blows in total.items() if blows}


class BlowDetector:
    """The blows of one cause. `onset_ns` is the first of the incident that is held, None without
    one; `blows` are how many it has had. It `is_confirmed` while another watch has named the same
    cause: then fewer blows are enough."""

    def __init__(self) -> None:
        self.onset_ns: int | None = None
        self.blows = 0
        self.is_confirmed = False
        self._late = 0
        self._sum = 0.0
        self._times: deque[int] = deque(maxlen=KEPT_BLOWS)

    @property
    def is_elevated(self) -> bool:
        """Above zero: this time must not become a reference, or a fault that comes back would be
        learnt between its blows."""
        return self.onset_ns is not None or self._sum > 0

    @property
    def period_s(self) -> float | None:
        """The median interval between its last blows."""
        period_ns = median([after - before for before, after in pairwise(self._times)])
        return None if period_ns is None else period_ns / 1e9

    @property
    def held_ns(self) -> int:
        """How long without a blow until it is over."""
        intervals = max(1, len(self._times) - 1)
        mean_ns = (self._times[-1] - self._times[0]) / intervals if self._times else 0.0
        return int(min(MOST_HELD_NS, max(LEAST_HELD_NS, HELD_INTERVALS * mean_ns)))

    def add(self, late_ns: Iterable[int], end_ns: int, usual_per_s: float) -> None:
        """The tick that ends at `end_ns`, with the times of its late tokens, in ascending order."""
        rate = max(BLOWS_PER_S, BLOWS_RATIO * usual_per_s)
        for at_ns in late_ns:
            self._late += 1
            if self._times and at_ns - self._times[-1] < BLOW_NS:
                continue
            self._times.append(at_ns)
            self.blows += 1
            self._sum = min(SUM_CEILING * BLOWS_THRESHOLD, self._sum + log(rate / usual_per_s))
        self._sum = max(0.0, self._sum - (rate - usual_per_s) * _TICK_S)
        if self.onset_ns is None:
            if not self._sum:
                self._begin()
            least = LEAST_CONFIRMED if self.is_confirmed else LEAST_BLOWS
            is_clear = self.blows >= least and self._late >= LEAST_LATE
            if self._sum > BLOWS_THRESHOLD * least / LEAST_BLOWS and is_clear:
                self.onset_ns = self._times[0]
        elif end_ns - self._times[-1] > self.held_ns:
            self.onset_ns = None
            self._begin()

    def _begin(self) -> None:
        self._times.clear()
        self.blows = self._late = 0
        self._sum, self.is_confirmed = 0.0, False
