"""The true offset is always within the bounds, whatever the delays, the skew and the drift."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from telemetry.clocks.offset import (
    HORIZON_NS,
    Bound,
    ClockStep,
    Exchange,
    OffsetTracker,
    drifted_ns,
)
from tests.support.worlds.skewed_fleet import SECOND, SkewedClock

DRIFT_PPM = 200
US = 1000
skews = st.integers(-100 * SECOND, 100 * SECOND)
rates = st.integers(-DRIFT_PPM, DRIFT_PPM)
delays = st.integers(0, 200_000) | st.integers(0, 2 * SECOND)


@dataclass(frozen=True)
class Leg:
    """One exchange of a history: the time before it, its two delays and the node's own time, and at
    which rate the clocks drift from then on."""

    gap_ns: int
    out_ns: int
    stay_ns: int
    back_ns: int
    ppm: int = 0


legs = st.builds(Leg, st.integers(0, 10 * SECOND), delays, delays, delays, rates)


def exchanges(clock: SkewedClock, history: list[Leg]) -> Iterator[Exchange]:
    """One after the other; the clock is read as they are made."""
    at_ns = 0
    for leg in history:
        sent_ns = at_ns + leg.gap_ns
        read_ns = sent_ns + leg.out_ns
        clock.go_on(sent_ns, leg.ppm)
        written_ns = read_ns + leg.stay_ns
        at_ns = written_ns + leg.back_ns
        yield Exchange(sent_ns, clock.show(read_ns), clock.show(written_ns), at_ns)


def is_within(tracker: OffsetTracker, clock: SkewedClock, history: list[Leg]) -> bool:
    """Whether the truth is in the bounds after each exchange, a while later, and no step is found
    where there is none."""
    for exchange in exchanges(clock, history):
        if tracker.add(exchange) is not None:
            return False
        for later_ns in (0, 10 * SECOND):
            at_ns = exchange.arrived_ns + later_ns
            bounds = tracker.at(at_ns)
            assert bounds is not None
            if not bounds.low_ns <= clock.show(at_ns) - at_ns <= bounds.high_ns:
                return False
    return True


@settings(max_examples=50, deadline=None)
@given(skews, st.lists(legs, min_size=1, max_size=25))
def test_the_true_offset_is_within_the_bounds(skew_ns: int, history: list[Leg]) -> None:
    assert is_within(OffsetTracker(DRIFT_PPM), SkewedClock([(0, skew_ns, 0)]), history)


class SwapsSigns(OffsetTracker):
    """As if theta were the gateway's clock less the node's."""

    def add(self, exchange: Exchange) -> ClockStep | None:
        sent_ns, received_ns, node_sent_ns, arrived_ns = exchange
        turned = Exchange(
            sent_ns, 2 * sent_ns - received_ns, 2 * arrived_ns - node_sent_ns, arrived_ns
        )
        return super().add(turned)


class AveragesTheWays(OffsetTracker):
    """As if both ways took the same time, as NTP's estimate has it."""

    def add(self, exchange: Exchange) -> ClockStep | None:
        found = super().add(exchange)
        highest_ns = min(bound.value_ns for bound in self.uppers)
        middle_ns = (highest_ns + max(bound.value_ns for bound in self.lowers)) // 2
        for kept in (self._uppers, self._lowers):
            for half, bound in kept.items():
                kept[half] = bound._replace(value_ns=middle_ns)
        return found


BROKEN = [SwapsSigns(DRIFT_PPM), AveragesTheWays(DRIFT_PPM), OffsetTracker(0), OffsetTracker(100)]


@pytest.mark.parametrize("tracker", BROKEN, ids=["signs", "averages", "no widening", "too little"])
def test_a_tracker_that_is_wrong_is_caught(tracker: OffsetTracker) -> None:
    """So the property above can fail: by the signs, the delays, and the rate of drift."""
    history = [Leg(SECOND, 50 * US, 0, 900 * US, DRIFT_PPM) for _ in range(20)]

    assert not is_within(tracker, SkewedClock([(0, 7 * SECOND, 0)]), history)


@settings(max_examples=40, deadline=None)
@given(skews, st.lists(legs, min_size=1, max_size=25))
def test_without_drift_the_bounds_are_as_near_as_the_quickest_round_trip(
    skew_ns: int, history: list[Leg]
) -> None:
    """Within the horizon."""
    tracker, clock = OffsetTracker(0, 1000 * SECOND), SkewedClock([(0, skew_ns, 0)])
    still = [Leg(leg.gap_ns, leg.out_ns, leg.stay_ns, leg.back_ns) for leg in history]
    for exchange in exchanges(clock, still):
        tracker.add(exchange)
    bounds = tracker.at(exchange.arrived_ns)
    assert bounds is not None

    width_ns = bounds.high_ns - bounds.low_ns
    assert width_ns <= min(leg.out_ns + leg.back_ns for leg in still)
    assert width_ns == min(leg.out_ns for leg in still) + min(leg.back_ns for leg in still)


quick = st.builds(Leg, st.integers(0, 10 * SECOND), *[st.integers(0, 5_000_000)] * 3, rates)
jumps = st.integers(SECOND, 100 * SECOND) | st.integers(-100 * SECOND, -SECOND)


@settings(max_examples=50, deadline=None)
@given(
    skews, jumps, st.lists(quick, min_size=1, max_size=8), st.lists(quick, min_size=2, max_size=8)
)
def test_a_step_begins_an_epoch_at_the_next_exchange(
    skew_ns: int, jump_ns: int, before: list[Leg], after: list[Leg]
) -> None:
    """It is found once, its size is no overstatement, and the bounds are true again; it lies after
    the time from which on nothing is promised."""
    tracker, clock = OffsetTracker(DRIFT_PPM), SkewedClock([(0, skew_ns, 0)])
    last = Exchange(0, 0, 0, 0)
    for last in exchanges(clock, before):
        assert tracker.add(last) is None
    clock.go_on(last.arrived_ns, 0, jump_ns)
    steps = []
    for number, leg in enumerate(after):
        (exchange,) = _shifted(clock, leg, last.arrived_ns)
        last = exchange
        steps += [step for step in [tracker.add(exchange)] if step is not None]
        assert len(steps) == 1, number
        bounds = tracker.at(exchange.arrived_ns)
        if bounds is not None:
            theta_ns = clock.show(exchange.arrived_ns) - exchange.arrived_ns
            assert bounds.low_ns <= theta_ns <= bounds.high_ns
    assert tracker.at(last.arrived_ns) is not None
    (step,) = steps
    assert step.since_ns <= clock.begins[len(before) + 1][0] <= step.at_ns
    assert abs(step.least_ns) <= abs(jump_ns)
    assert (step.least_ns > 0) == (jump_ns > 0)


def test_a_step_that_slow_frames_hide_is_said_to_be_no_later_than_it_was() -> None:
    """They do not contradict what was known before, and prove nothing of it."""
    tracker, clock = OffsetTracker(DRIFT_PPM), SkewedClock([(0, 0, 0)])
    quick, slow = (Leg(SECOND // 10, 100 * US, 0, back_us * US) for back_us in (100, 8000))
    for exchange in exchanges(clock, [quick] * 5):
        assert tracker.add(exchange) is None
    stepped_ns = exchange.arrived_ns + 1
    clock.go_on(stepped_ns, 0, 3000 * US)
    for leg in [slow] * 10:
        (exchange,) = _shifted(clock, leg, exchange.arrived_ns)
        assert tracker.add(exchange) is None
    (exchange,) = _shifted(clock, quick, exchange.arrived_ns)
    step = tracker.add(exchange)

    assert step is not None
    assert stepped_ns - SECOND // 10 < step.since_ns <= stepped_ns <= step.at_ns
    assert 0 < step.least_ns <= 3000 * US


short = st.builds(Leg, st.integers(0, 2 * SECOND), *[st.integers(0, 20_000_000)] * 3, rates)


@settings(max_examples=50, deadline=None)
@given(
    skews,
    st.integers(-20_000_000, 20_000_000),
    st.lists(short, min_size=1, max_size=8),
    st.lists(short, min_size=10, max_size=25),
)
@example(0, 20_000_000, [Leg(SECOND, 0, 0, 0)], [Leg(SECOND, *[20_000_000] * 3)] * 15)
@example(0, -20_000_000, [Leg(SECOND, 0, 0, 0)], [Leg(SECOND, *[20_000_000] * 3)] * 15)
def test_a_step_within_the_bounds_is_found_or_over_after_the_horizon(
    skew_ns: int, jump_ns: int, before: list[Leg], after: list[Leg]
) -> None:
    """Whether frames after it show it or not, the bounds are true again then."""
    tracker, clock = OffsetTracker(DRIFT_PPM), SkewedClock([(0, skew_ns, 0)])
    for exchange in exchanges(clock, before):
        assert tracker.add(exchange) is None
    stepped_ns = exchange.arrived_ns
    clock.go_on(stepped_ns, 0, jump_ns)
    for leg in after:
        (exchange,) = _shifted(clock, leg, exchange.arrived_ns)
        step = tracker.add(exchange)
        if step is not None:
            assert step.since_ns <= stepped_ns <= step.at_ns
        bounds = tracker.at(exchange.arrived_ns)
        if bounds is not None and exchange.sent_ns >= stepped_ns + HORIZON_NS:
            theta_ns = clock.show(exchange.arrived_ns) - exchange.arrived_ns
            assert bounds.low_ns <= theta_ns <= bounds.high_ns


def _shifted(clock: SkewedClock, leg: Leg, from_ns: int) -> list[Exchange]:
    """One exchange after `from_ns`."""
    later = Leg(from_ns + leg.gap_ns, leg.out_ns, leg.stay_ns, leg.back_ns, leg.ppm)
    return list(exchanges(clock, [later]))


class NeverBeginsAnEpoch(OffsetTracker):
    def _begin_epoch(self, at_ns: int, upper: Bound | None, lower: Bound) -> None:
        pass


@pytest.mark.parametrize("jump_ns", [5 * SECOND, -5 * SECOND])
def test_without_epochs_a_step_leaves_the_bounds_wrong_for_good(jump_ns: int) -> None:
    for kind, is_right in ((OffsetTracker, True), (NeverBeginsAnEpoch, False)):
        tracker, clock = kind(DRIFT_PPM), SkewedClock([(0, 0, 0)])
        at_ns = 0
        for number in range(10):
            if number == 5:
                clock.go_on(at_ns, 0, jump_ns)
            (exchange,) = _shifted(clock, Leg(SECOND, US, US, US), at_ns)
            tracker.add(exchange)
            at_ns = exchange.arrived_ns
        bounds = tracker.at(at_ns)
        theta_ns = clock.show(at_ns) - at_ns
        assert (bounds is not None and bounds.low_ns <= theta_ns <= bounds.high_ns) == is_right


def test_an_exchange_that_began_before_the_epoch_says_nothing_of_it() -> None:
    """The node may have read it before the step."""
    tracker = OffsetTracker(DRIFT_PPM)
    tracker.add(Exchange(0, 1000, 1100, 200))
    assert tracker.add(Exchange(300, 9_000_300, 9_000_400, 500)) is not None
    tracker.add(Exchange(600, 9_000_700, 9_000_700, 900))
    before = tracker.at(1000)

    assert tracker.add(Exchange(250, 1250, 9_000_950, 1000)) is None
    assert tracker.at(1000) == before


def test_drift_is_rounded_up() -> None:
    assert [drifted_ns(age, 200) for age in (0, 1, 5000, 5001, -1)] == [0, 1, 1, 2, 0]
