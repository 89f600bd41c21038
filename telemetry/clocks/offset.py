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
side stays the best, and the state is a few bounds, however many exchanges there were.

An empty intersection has one explanation within the stated drift: a clock was set, or stood still.
A new *epoch* begins, from what was surely seen after the step. A step that leaves an intersection
cannot be told from a slow frame, and the truth may lie outside of it. So a bound is used for a time
of HORIZON_NS only: after that nothing from before the step is left.

All numbers are integers of nanoseconds; `_ppm` are parts per million.
"""

from __future__ import annotations

from typing import NamedTuple

DRIFT_PPM = 200
"""Crystals of servers keep 50 ppm, and NTP may slew a clock by more while it corrects it."""

HORIZON_NS = 10_000_000_000
"""A quick frame of so long ago is worth 2 ms, by the drift since."""

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
    """Found at `at_ns` of the gateway's time: since some moment after `since_ns`, when the latest
    frame was sent that contradicts what came then, the clocks are further apart, or nearer, than
    drift explains. `least_ns` of it is sure; positive: the node's clock went ahead."""

    at_ns: int
    since_ns: int
    least_ns: int


def drifted_ns(age_ns: int, drift_ppm: int) -> int:
    """The most that two clocks drift apart in `age_ns`, rounded up."""
    return -(-age_ns * drift_ppm // _MILLION) if age_ns > 0 else 0


def _reach_ns(bound: Bound, begin_ns: int, end_ns: int, drift_ppm: int) -> int:
    """How many ns a bound is widened by to hold all over [begin, end]."""
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
    in which they arrived, the last at `heard_ns`.

    Of each half of the horizon the best bounds of both sides are kept: of the half in which the
    last exchange began, and of the one before it."""

    def __init__(self, drift_ppm: int = DRIFT_PPM, horizon_ns: int = HORIZON_NS) -> None:
        assert 0 <= drift_ppm < _MILLION, drift_ppm
        assert horizon_ns > 1, horizon_ns
        self.drift_ppm, self.horizon_ns = drift_ppm, horizon_ns
        self.epoch = 0
        self.epoch_begin_ns: int | None = None
        self._uppers: dict[int, Bound] = {}  # by the number of the half
        self._lowers: dict[int, Bound] = {}
        self._last: tuple[Bound, Bound] | None = None  # of the exchange that was sent last
        self.heard_ns = 0

    @property
    def uppers(self) -> tuple[Bound, ...]:
        return tuple(self._uppers.values())

    @property
    def lowers(self) -> tuple[Bound, ...]:
        return tuple(self._lowers.values())

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
            self._keep(self._uppers, upper, 1)
            self._keep(self._lowers, lower, -1)
            if self._last is None or sent_ns >= self._last[0].begin_ns:
                self._last = (upper, lower)
        return step

    def _step(self, upper: Bound, lower: Bound, at_ns: int) -> ClockStep | None:
        """A new epoch, if the bounds of an exchange contradict those before it or each other."""
        last_upper, last_lower = self._last or (upper, lower)
        uppers = (*self.uppers, last_upper, upper)
        lowers = (*self.lowers, last_lower, lower)
        ahead = offset_over(uppers, (lower,), at_ns, at_ns, self.drift_ppm)
        behind = offset_over((upper,), lowers, at_ns, at_ns, self.drift_ppm)
        assert ahead is not None
        assert behind is not None
        if ahead.low_ns > ahead.high_ns:
            against = [one for one in uppers if self._widened_ns(one, at_ns, 1) < ahead.low_ns]
            # the last stamp is of the new epoch; the node may have read the frame before the step
            self._begin_epoch(at_ns, None, lower)
            least_ns = ahead.low_ns - ahead.high_ns
        elif behind.low_ns > behind.high_ns:
            against = [one for one in lowers if self._widened_ns(one, at_ns, -1) > behind.high_ns]
            self._begin_epoch(at_ns, upper, lower)
            least_ns = behind.high_ns - behind.low_ns
        else:
            return None
        # what does not contradict proves nothing of the time before it
        since_ns = max(one.begin_ns for one in against)
        return ClockStep(at_ns, min(since_ns, upper.begin_ns), least_ns)

    def _widened_ns(self, bound: Bound, at_ns: int, sign: int) -> int:
        return bound.value_ns + sign * _reach_ns(bound, at_ns, at_ns, self.drift_ppm)

    def _begin_epoch(self, at_ns: int, upper: Bound | None, lower: Bound) -> None:
        self.epoch += 1
        self.epoch_begin_ns = at_ns
        self._uppers, self._lowers, self._last = {}, {}, None
        self._keep(self._lowers, lower, -1)
        if upper is not None:
            self._keep(self._uppers, upper, 1)

    def _keep(self, kept: dict[int, Bound], new: Bound, sign: int) -> None:
        """A bound, if it is the best of its half; those that have served their time go."""
        half = new.begin_ns // (self.horizon_ns // 2)
        old = kept.get(half)
        if old is None or sign * self._rank(new, sign) <= sign * self._rank(old, sign):
            kept[half] = new
        oldest = max(kept) - 1
        for passed in [one for one in kept if one < oldest]:
            del kept[passed]

    def _rank(self, bound: Bound, sign: int) -> int:
        """The bound's value at time 0, times a million: the order of two bounds at any later
        time."""
        return bound.value_ns * _MILLION - sign * self.drift_ppm * bound.begin_ns
