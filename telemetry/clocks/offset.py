"""Bounds on how far a node's clock is ahead of the gateway's, by causality alone.

    gateway   t1 ----------------------- t4        theta = node's clock - gateway's clock
                 \\                     /
    node          t2 --------------- t3

A frame is read after it was handed over. When the node's clock shows t2 the gateway's shows at
least t1, so theta <= t2 - t1; when it shows t3 the gateway's shows at most t4, so
theta >= t3 - t4. No delay is assumed to be the same both ways, and none is estimated. The bounds of
many exchanges are intersected (Marzullo's intersection of intervals, as in NTP; the frames are
those that carry data anyway). Two clocks drift, at most DRIFT_PPM against each other, so a bound is
widened by that rate times its distance in time. As all bounds widen at one rate, the best of each
side stays the best, and the state is two bounds, however many exchanges there were.

An empty intersection has one explanation within the stated drift: a clock was set, or stood still.
A new *epoch* begins, from what was surely seen after the step. A step that keeps within the bounds
is not seen.

All numbers are integers of nanoseconds; `_ppm` are parts per million.
"""

from __future__ import annotations

from typing import NamedTuple

DRIFT_PPM = 200
"""Crystals of servers keep 50 ppm, and NTP may slew a clock by more while it corrects it."""

_MILLION = 1_000_000


class Exchange(NamedTuple):
    """The four stamps: `sent_ns` and `arrived_ns` by the gateway's clock, the others by the
    node's."""

    sent_ns: int
    node_received_ns: int
    node_sent_ns: int
    arrived_ns: int


class Bound(NamedTuple):
    """Theta was at most, or at least, `value_ns` at a moment in [begin_ns, end_ns] of the
    gateway's time."""

    value_ns: int
    begin_ns: int
    end_ns: int


class Offset(NamedTuple):
    """Theta is in [low_ns, high_ns]."""

    low_ns: int
    high_ns: int


class ClockStep(NamedTuple):
    """Found at `at_ns` of the gateway's time: since some moment after `since_ns` the clocks are
    further apart, or nearer, than drift explains. `least_ns` of it is sure; positive: the node's
    clock went ahead."""

    at_ns: int
    since_ns: int
    least_ns: int


def drifted_ns(age_ns: int, drift_ppm: int) -> int:
    """The most that two clocks drift apart in `age_ns`, rounded up."""
    return -(-age_ns * drift_ppm // _MILLION) if age_ns > 0 else 0


def _reach_ns(bound: Bound, begin_ns: int, end_ns: int, drift_ppm: int) -> int:
    """By how much a bound is widened to hold all over [begin, end]."""
    return drifted_ns(max(end_ns - bound.begin_ns, bound.end_ns - begin_ns), drift_ppm)


def offset_over(
    uppers: tuple[Bound, ...],
    lowers: tuple[Bound, ...],
    begin_ns: int,
    end_ns: int,
    drift_ppm: int = DRIFT_PPM,
) -> Offset | None:
    """Where theta is at every moment of [begin, end]; None: not bounded on both sides. An empty
    intersection has `low_ns` above `high_ns`."""
    if not uppers or not lowers:
        return None
    high_ns = min(b.value_ns + _reach_ns(b, begin_ns, end_ns, drift_ppm) for b in uppers)
    low_ns = max(b.value_ns - _reach_ns(b, begin_ns, end_ns, drift_ppm) for b in lowers)
    return Offset(low_ns, high_ns)


class OffsetTracker:
    """The bounds of one node's clock in its current epoch. Exchanges are added about in the order
    in which they arrived, the last at `heard_ns`."""

    def __init__(self, drift_ppm: int = DRIFT_PPM) -> None:
        assert 0 <= drift_ppm < _MILLION, drift_ppm
        self.drift_ppm = drift_ppm
        self.epoch = 0
        self.epoch_begin_ns: int | None = None
        self._upper: Bound | None = None
        self._lower: Bound | None = None
        self._last_sent_ns: int | None = None
        self.heard_ns = 0

    @property
    def uppers(self) -> tuple[Bound, ...]:
        return () if self._upper is None else (self._upper,)

    @property
    def lowers(self) -> tuple[Bound, ...]:
        return () if self._lower is None else (self._lower,)

    def at(self, at_ns: int) -> Offset | None:
        """Where theta is at that moment; None: not bounded on both sides."""
        return offset_over(self.uppers, self.lowers, at_ns, at_ns, self.drift_ppm)

    def add(self, exchange: Exchange) -> ClockStep | None:
        """Take an exchange; the step that it shows, if it shows one.

        One that began before the epoch is left out: which of its stamps are of this epoch is not
        known."""
        sent_ns, at_ns = exchange.sent_ns, exchange.arrived_ns
        assert sent_ns <= at_ns, f"an answer arrived {sent_ns - at_ns} ns before it was asked for"
        self.heard_ns = max(self.heard_ns, at_ns)
        if self.epoch_begin_ns is not None and sent_ns < self.epoch_begin_ns:
            return None
        upper = Bound(exchange.node_received_ns - sent_ns, sent_ns, at_ns)
        lower = Bound(exchange.node_sent_ns - at_ns, sent_ns, at_ns)
        step = self._step(upper, lower, at_ns)
        if step is None:
            self._upper = self._better_upper(upper)
            self._lower = self._better_lower(lower)
            self._last_sent_ns = max(sent_ns, self._last_sent_ns or sent_ns)
        return step

    def _step(self, upper: Bound, lower: Bound, at_ns: int) -> ClockStep | None:
        """A new epoch, if the bounds of an exchange contradict those before it or each other."""
        ahead = offset_over((*self.uppers, upper), (lower,), at_ns, at_ns, self.drift_ppm)
        behind = offset_over((upper,), (*self.lowers, lower), at_ns, at_ns, self.drift_ppm)
        assert ahead is not None
        assert behind is not None
        if ahead.low_ns > ahead.high_ns:
            # the last stamp is of the new epoch; the node may have read the frame before the step
            self._begin_epoch(at_ns, None, lower)
            least_ns = ahead.low_ns - ahead.high_ns
        elif behind.low_ns > behind.high_ns:
            self._begin_epoch(at_ns, upper, lower)
            least_ns = behind.high_ns - behind.low_ns
        else:
            return None
        since_ns = upper.begin_ns if self._last_sent_ns is None else self._last_sent_ns
        self._last_sent_ns = None
        return ClockStep(at_ns, min(since_ns, upper.begin_ns), least_ns)

    def _begin_epoch(self, at_ns: int, upper: Bound | None, lower: Bound) -> None:
        self.epoch += 1
        self.epoch_begin_ns = at_ns
        self._upper, self._lower = upper, lower

    def _better_upper(self, new: Bound) -> Bound:
        old = self._upper
        return new if old is None or self._rank(new, 1) <= self._rank(old, 1) else old

    def _better_lower(self, new: Bound) -> Bound:
        old = self._lower
        return new if old is None or self._rank(new, -1) >= self._rank(old, -1) else old

    def _rank(self, bound: Bound, sign: int) -> int:
        """The bound's value at time 0, times a million: the order of two bounds at any later
        time."""
        return bound.value_ns * _MILLION - sign * self.drift_ppm * bound.begin_ns
