"""The sequential test of a promise: it is silent at the objective, and sure soon beyond it."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest

from diagnosis.promises.attainment import Attainment
from diagnosis.promises.chance import clump, divergence, evidence
from diagnosis.promises.thresholds import SURE_NATS

TICK_NS = 500_000_000
HOUR = 7200  # ticks

Miss = Callable[[int], float]
"""The probability that a request misses, by tick."""


def poisson(draw: Random, mean: float) -> int:
    count, part, total, u = 0, math.exp(-mean), math.exp(-mean), draw.random()
    while u > total:
        count += 1
        part *= mean / count
        total += part
    return count


def missed_ticks(
    objective: float, rate_per_s: float, ticks: int, miss: Miss, together: int = 1, seed: int = 1
) -> list[int]:
    """The ticks in which the class counts as missed. Requests come in groups that miss together."""
    draw, one = Random(seed), Attainment(objective, 0)
    found: list[int] = []
    for tick in range(1, ticks):
        for _ in range(poisson(draw, rate_per_s / 2 / together)):
            is_missed = draw.random() < miss(tick)
            for _ in range(together):
                if is_missed:
                    one.miss()
                else:
                    one.good()
        one.tick(tick * TICK_NS)
        if one.onset_ns is not None:
            found.append(tick)
    return found


@pytest.mark.parametrize("together", [1, 8])
@pytest.mark.parametrize("objective", [0.999, 0.99, 0.9, 0.5])
def test_traffic_that_meets_its_objective_exactly_is_not_missed(
    objective: float, together: int
) -> None:
    """Two hours at each of two rates, with misses one by one and eight at a time."""
    for rate_per_s in (1.0, 8.0):
        found = missed_ticks(objective, rate_per_s, 2 * HOUR, lambda _: 1 - objective, together)
        assert found == [], (objective, rate_per_s)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("miss", "within_s"), [(1.0, 8), (0.5, 20), (0.2, 40), (0.05, 250)], ids=str
)
def test_what_is_missed_since_the_start_is_known_soon_and_held(
    miss: float, within_s: int, seed: int
) -> None:
    """At four requests a second and an objective of 99 %; the sooner, the more is missed."""
    found = missed_ticks(0.99, 4.0, 1200, lambda _: miss, seed=seed)

    assert found[0] <= 2 * within_s
    assert len(found) > 0.8 * (1200 - found[0])


def test_a_blip_that_the_budget_allows_is_not_missed() -> None:
    """Two seconds in which everything misses, a minute after the start and every five minutes."""
    assert missed_ticks(0.99, 4.0, 4 * 600, lambda tick: float(tick % 600 in range(120, 124))) == []


def test_what_the_budget_of_five_minutes_allows_is_not_missed_though_it_is_no_chance() -> None:
    """For ten seconds one request of ten misses, ten seconds after the start: 20 of 6000."""
    one = Attainment(0.99, 0)
    for tick in range(1, 600):
        for number in range(10):
            if number == 0 and 20 <= tick < 40:
                one.miss()
            else:
                one.good()
        one.tick(tick * TICK_NS)
        assert one.onset_ns is None
    assert evidence(20, 400, 0.01) > SURE_NATS


def test_a_longer_outage_is_missed_and_is_over_soon_after_it() -> None:
    found = missed_ticks(0.99, 4.0, 1200, lambda tick: float(300 <= tick < 360))

    assert 300 < found[0] <= 340
    assert found[-1] < 360 + 40
    assert found == list(range(found[0], found[-1] + 1))


@pytest.mark.parametrize("objective", [0.51, 0.5, 0.3])
def test_a_class_with_a_low_objective_is_met_again_after_minutes_of_good_requests(
    objective: float,
) -> None:
    """All of its requests miss for the first hundred seconds."""
    found = missed_ticks(objective, 4.0, 1200, lambda tick: float(tick < 200))

    assert found[0] < 200 <= found[-1] < 200 + 120
    assert found == list(range(found[0], found[-1] + 1))


@pytest.mark.parametrize("objective", [0.51, 0.5])
def test_a_class_with_a_low_objective_that_goes_on_missing_is_not_met_again(
    objective: float,
) -> None:
    """Four requests of five miss, and half may: a few good ones in a row are chance."""
    found = missed_ticks(objective, 4.0, 1200, lambda _: 0.8)

    assert found[0] < 400
    assert found == list(range(found[0], 1200))


def test_pauses_that_make_many_requests_late_at_once_are_few_mishaps() -> None:
    """Three pauses in a minute, each with eight late requests of 120 each minute."""
    one = Attainment(0.99, 0)
    for tick in range(1, 120):
        for _ in range(8 if tick in (20, 55, 90) else 1):
            if tick in (20, 55, 90):
                one.miss()
            else:
                one.good()
        one.tick(tick * TICK_NS)
        assert one.onset_ns is None


def test_requests_that_run_in_time_count_as_good_before_they_end() -> None:
    """Else the first to be known would be those that missed."""
    one, alone = Attainment(0.99, 0), Attainment(0.99, 0)
    one.running = 3_000
    for tick in range(1, 13):
        one.miss()
        alone.miss()
        one.tick(tick * TICK_NS)
        alone.tick(tick * TICK_NS)

    assert one.onset_ns is None
    assert alone.onset_ns is not None


def test_a_class_whose_requests_all_wait_is_missed_until_they_are_served() -> None:
    """No request ends or comes any more, and some wait beyond their target."""
    one = Attainment(0.99, 0)
    for tick in range(1, 200):
        if tick < 30:
            one.miss()
        one.overdue = 5
        one.tick(tick * TICK_NS)
    assert one.onset_ns is not None

    one.overdue = 0
    one.tick(200 * TICK_NS)
    assert one.onset_ns is None


def test_the_onset_is_when_the_misses_begin() -> None:
    one = Attainment(0.99, 0)
    for tick in range(1, 400):
        for _ in range(3):
            if tick >= 300:
                one.miss()
            else:
                one.good()
        one.tick(tick * TICK_NS)

    assert one.onset_ns == 300 * TICK_NS


def test_evidence_is_an_upper_bound_of_the_binomial_tail() -> None:
    """exp(-evidence) is at least the chance, and not much more."""
    for requests, missed, allowed in ((40, 6, 0.01), (200, 12, 0.01), (50, 20, 0.1)):
        tail = sum(
            math.comb(requests, k) * allowed**k * (1 - allowed) ** (requests - k)
            for k in range(missed, requests + 1)
        )
        assert tail <= math.exp(-evidence(missed, requests, allowed)) < 20 * tail


def test_edges() -> None:
    assert divergence(0.01, 0.01) == 0.0
    assert divergence(1.0, 0.01) == pytest.approx(-math.log(0.01))
    assert evidence(0, 0, 0.01) == 0.0
    assert clump([]) == clump([1, 0, 1]) == 1.0
    assert clump([8, 0]) == 8.0
