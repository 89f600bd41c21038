"""Learning the baseline of a running server: from which stretch, and when.

Nothing is learnt in the first seconds after a start, while an alarm may be beginning, across an
alarm that lasted, or while there is no engine or no request: in the pause of a restart nobody asks,
and what came before would look like little. Two exceptions keep a server from being compared with
nothing forever: a load that has been steady for `STEADY_TICKS` is learnt whatever the SLO says, and
a given baseline is never replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import BUCKET_NS
from diagnosis.detection.excess import (
    StageStats,
    dispersion_of,
    excess_spread,
    prompt_excess_spread,
    slow_step_excess_spread,
    stopped_stats,
)
from diagnosis.detection.lengths import LengthMemory, lengths_of
from diagnosis.detection.reference import Reference, fit_baseline
from diagnosis.detection.step_cost import SpeedDrift
from diagnosis.thresholds import (
    IDLE_TICKS,
    LEAST_FIRST_TOKENS,
    LEAST_REFERENCE_NS,
    REFERENCE_LAG_NS,
    REFERENCE_NS,
    REFRESH_TICKS,
    STEADY_RATIO,
    STEADY_TICKS,
    WARM_UP_NS,
)


class BaselineLearner:
    """Holds the reference: `baseline` where one is given, else what was learnt of this run in
    `span_ns`, None until then."""

    def __init__(self, aggregator: Aggregator, baseline: Reference | None = None) -> None:
        self.reference = baseline
        self.is_given = baseline is not None
        self.span_ns: tuple[int, int] | None = None
        self._aggregator = aggregator
        self._ticks: deque[tuple[int, StageStats]] = deque(maxlen=REFERENCE_NS // BUCKET_NS + 8)
        self._speed = SpeedDrift()
        self._lengths = LengthMemory()
        self._normal_from_ns = 0
        self._calls = 0

    def add(self, begin_ns: int, stats: StageStats) -> None:
        """One tick, whether or not it becomes part of a reference."""
        self._ticks.append((begin_ns, stats))

    def exclude_until(self, end_ns: int) -> None:
        """A fault ended then: what was before is no part of a reference."""
        self._normal_from_ns = end_ns

    def learn(self, now_ns: int, *, is_elevated: bool) -> None:
        """Called once a tick; fits again every REFRESH_TICKS calls, if enough was normal."""
        if is_elevated and not (self.reference is None and self._is_steady()):
            return
        self._calls += 1
        if self.is_given or self._calls % REFRESH_TICKS or self._is_idle():
            return
        end_ns = now_ns - REFERENCE_LAG_NS
        self._remember(*self._normal_stretch(end_ns))
        found = self.fit(end_ns)
        if found is not None:
            self._compare_speed(end_ns)
            self.reference = msgspec.structs.replace(found, speed_spread=self._speed.spread)
            self.span_ns = (end_ns - int(found.seconds * 1e9), end_ns)

    def _compare_speed(self, end_ns: int) -> None:
        """How fast steps were since the last reference, unless a fault ended meanwhile."""
        before, started = self.reference, self._aggregator.started
        if before is None or before.cost is None or self.span_ns is None:
            return
        if before.started == started and self._normal_from_ns <= self.span_ns[1]:
            self._speed.add(self._aggregator.steps(self.span_ns[1], end_ns), before.cost)

    def _is_steady(self) -> bool:
        """The later half of the last ticks has about as many requests in flight as the earlier."""
        live = [sum(stats.live_ns) for _, stats in self._ticks][-STEADY_TICKS:]
        middle = len(live) // 2
        before, after = sum(live[:middle]), sum(live[middle:])
        return len(live) == STEADY_TICKS and after < STEADY_RATIO * before

    def _is_idle(self) -> bool:
        """No engine, or no request in the last ticks."""
        is_down = self._aggregator.started is not None and not self._aggregator.ready
        return is_down or not any(sum(stats.live_ns) for _, stats in self._last(IDLE_TICKS))

    def _last(self, ticks: int) -> Iterator[tuple[int, StageStats]]:
        return islice(reversed(self._ticks), ticks)

    def _normal_stretch(self, end_ns: int) -> tuple[int, int]:
        """[begin, end) of the whole ticks that a reference may be made of, until about `end_ns`."""
        started = self._aggregator.started
        first_ns = self._aggregator.first_ns or 0
        warm_ns = max(first_ns, 0 if started is None else started.at_ns) + WARM_UP_NS
        normal_ns = self._normal_from_ns + REFERENCE_LAG_NS
        begin_ns = max(warm_ns, normal_ns, end_ns - REFERENCE_NS)
        return -(-begin_ns // BUCKET_NS) * BUCKET_NS, end_ns // BUCKET_NS * BUCKET_NS

    def _remember(self, begin_ns: int, end_ns: int) -> None:
        """Keep the lengths of this stretch that are not known yet."""
        new_ns = max(begin_ns, self._lengths.end_ns)
        if end_ns > new_ns:
            self._lengths.add(new_ns, end_ns, self._aggregator.counts(new_ns, end_ns))
            self._lengths.forget_other(begin_ns)

    def fit(self, end_ns: int) -> Reference | None:
        """The baseline of the stretch that ends at `end_ns`; None where too little was normal."""
        begin_ns, end_ns = self._normal_stretch(end_ns)
        if end_ns - begin_ns < LEAST_REFERENCE_NS:
            return None
        counts = self._aggregator.counts(begin_ns, end_ns)
        if counts.first_tokens < LEAST_FIRST_TOKENS:
            return None
        steps = self._aggregator.steps(begin_ns, end_ns)
        recent, known = lengths_of(counts), self._lengths.known()
        found = fit_baseline(
            (end_ns - begin_ns) / 1e9,
            counts,
            steps,
            self._aggregator.started_at(end_ns),
            self._aggregator.host_time(counts, begin_ns),
            known if len(known.prompts) > len(recent.prompts) else recent,
        )
        timed = [one for one in self._ticks if begin_ns <= one[0] < end_ns]
        ticks = [stats for _, stats in timed]
        stopped, stopped_spread = stopped_stats(ticks)
        return msgspec.structs.replace(
            found,
            spread=excess_spread(ticks, found),
            slow_spread=slow_step_excess_spread(steps, found.cost),
            own_prompt_spread=prompt_excess_spread(steps, timed, found),
            stopped=stopped,
            stopped_spread=stopped_spread,
            dispersion=dispersion_of(ticks),
            tails=self._aggregator.requests.late.fit(begin_ns, end_ns, steps),
            speed_spread=self._speed.spread,
        )
