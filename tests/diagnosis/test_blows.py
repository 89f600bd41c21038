"""Rare faults that come back: found against the rate of the baseline, held, and then over."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from diagnosis.detection.blows import BlowDetector, blows_of, usual_rate
from diagnosis.detection.counts import BUCKET_NS
from diagnosis.detection.tail_thresholds import (
    BLOW_NS,
    LEAST_BLOWS,
    LEAST_HELD_NS,
    MOST_HELD_NS,
)

SECOND = 1_000_000_000
RARE = usual_rate(0, 40.0)


def watched(
    blows_s: list[float], until_s: float, usual_per_s: float = RARE, late_each: int = 3
) -> list[tuple[float, int | None]]:
    """Onsets at the end of each tick, with `late_each` late tokens a blow."""
    detector = BlowDetector()
    found: list[tuple[float, int | None]] = []
    for tick in range(int(until_s * SECOND / BUCKET_NS)):
        begin_ns, end_ns = tick * BUCKET_NS, (tick + 1) * BUCKET_NS
        inside = [at for at in blows_s if begin_ns <= at * SECOND < end_ns]
        late_ns = [int(at * SECOND) + number for at in inside for number in range(late_each)]
        detector.add(late_ns, end_ns, usual_per_s)
        found.append((end_ns / SECOND, detector.onset_ns))
    return found


def firing_s(found: list[tuple[float, int | None]]) -> list[float]:
    return [at_s for at_s, onset_ns in found if onset_ns is not None]


def test_a_fault_every_four_seconds_is_found_at_its_third_blow_and_held_between_them() -> None:
    found = firing_s(watched([10, 14, 18, 22, 26, 30], 60))

    assert found[0] == 18.5
    assert found == [18.5 + 0.5 * number for number in range(len(found))]
    assert 30 + 4 < found[-1] <= 30 + MOST_HELD_NS / SECOND + 0.5


def test_what_the_mean_has_named_is_held_after_two_blows() -> None:
    """Eight seconds apart: alone it takes three."""
    alone, confirmed = BlowDetector(), BlowDetector()
    confirmed.is_confirmed = True
    for tick in range(2 * 20):
        late_ns = [tick * BUCKET_NS + number for number in range(2)] if tick in (8, 24) else []
        for detector in (alone, confirmed):
            detector.add(late_ns, (tick + 1) * BUCKET_NS, RARE)
            detector.is_confirmed = detector is confirmed

    assert alone.onset_ns is None
    assert confirmed.onset_ns == 8 * BUCKET_NS


def test_bursts_that_make_two_blows_each_are_held_from_one_to_the_next() -> None:
    """Most intervals are short then, and the fault is as long as the others."""
    bursts_s = [at_s + more for at_s in range(10, 60, 7) for more in (0.0, 1.2)]
    firing = firing_s(watched(bursts_s, 80))

    assert max(after - before for before, after in pairwise(firing)) <= BUCKET_NS / SECOND
    assert firing[0] <= 25
    assert firing[-1] >= bursts_s[-1]


def test_its_onset_is_the_first_blow_and_its_period_the_median_interval() -> None:
    detector = BlowDetector()
    for tick in range(60):
        at_ns = tick * BUCKET_NS
        detector.add([at_ns] if tick % 6 == 0 and tick else [], at_ns + BUCKET_NS, RARE)

    assert detector.onset_ns == 3 * SECOND
    assert detector.period_s == 3.0
    assert detector.blows == 9


def test_two_blows_are_chance() -> None:
    assert not firing_s(watched([10, 12], 40))


def test_one_late_token_a_blow_is_enough_and_a_crowd_at_once_is_one_blow() -> None:
    assert firing_s(watched([10, 13, 16], 30, late_each=1))
    assert not firing_s(watched([10.0 + number / 50 for number in range(50)], 30))


def test_what_the_baseline_has_as_often_is_no_fault() -> None:
    """One in three seconds, as ever; a fault has to come more often than that."""
    blows_s = [float(at) for at in range(3, 120, 3)]

    assert not firing_s(watched(blows_s, 120, usual_rate(13, 40.0)))
    assert firing_s(watched(blows_s, 120))


@given(st.lists(st.floats(0, 50), max_size=60), st.floats(0, 20))
def test_it_is_held_no_longer_than_the_cap_and_no_shorter_than_the_floor(
    blows_s: list[float], seen: float
) -> None:
    usual_per_s = usual_rate(seen, 40.0)
    found = watched(sorted(blows_s), 80, usual_per_s)
    firing = firing_s(found)
    last_s = max(blows_s, default=0.0)

    assert all(at_s <= last_s + (MOST_HELD_NS + BUCKET_NS) / SECOND for at_s in firing)
    if firing:
        assert len(blows_of(sorted(int(at * SECOND) for at in blows_s))) >= LEAST_BLOWS
        assert max(firing) >= min(80.0, (LEAST_HELD_NS / SECOND))


@given(st.lists(st.integers(0, 60 * SECOND), max_size=80))
def test_blows_are_apart_and_cover_every_late_token(times_ns: list[int]) -> None:
    blows = blows_of(sorted(times_ns))

    assert all(after - before >= BLOW_NS for before, after in pairwise(blows))
    assert all(any(at <= one < at + BLOW_NS for at in blows) for one in times_ns)
