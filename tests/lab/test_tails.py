"""Intensities of faults of the tail are searched for, and mean what they say."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.diagnosis.episodes import CHAINS_DEV, TAILS_DEV, series
from benchmarks.diagnosis.tails.intensities import GOOD_FOR_S, Intensities
from diagnosis.symptoms import LATENCY, Symptom
from lab.drills.calibration.probe import Calibration
from lab.drills.calibration.steps import (
    BANDS,
    MOST_STEPS,
    Band,
    Probe,
    intensity_at,
    is_calm,
    nearest,
    next_place,
)
from lab.drills.client import Sent
from lab.drills.harm import Harm, HarmMeasure, Level, reached
from lab.drills.mechanism import CHAINS, SOAK, TAILS, TEST, Mechanism
from lab.drills.mechanisms.health import ramp, states, stepwise, thinned
from lab.drills.registry import MECHANISMS, of_series, of_split

MS = 1_000_000
LATE = Harm(measure=HarmMeasure.TTFT_P95)
GAPS = Harm(measure=HarmMeasure.GAP_SHARE, everyone=True)


def sent(number: int, ttft_ms: float | None, *gaps_ms: int, **more: object) -> Sent:
    first_ns = None if ttft_ms is None else number * MS + int(ttft_ms * MS)
    one = Sent(
        request_id=str(number),
        tenant="red",
        is_culprit=False,
        due_ns=number * MS,
        first_ns=first_ns,
        end_ns=first_ns,
        status=200,
        tokens=1 + len(gaps_ms),
        gaps_us=[1000 * gap for gap in gaps_ms],
    )
    return msgspec.structs.replace(one, **more)


NO_TAIL = {Symptom.ADAPTER_CHURN}
"""Classes whose tail was not yet calibrated on a real server."""


# --- the mechanisms ------------------------------------------------------------------------


def test_every_class_that_delays_requests_has_a_tail_that_no_other_series_runs() -> None:
    """One mechanism each, of the test, with ends of its intensity; NO_TAIL have none yet."""
    tails = of_series(TAILS)
    others = {(one.symptom, one.name) for split in ("dev", "test") for one in of_split(split)}

    assert sorted(one.symptom for one in tails) == sorted(set(LATENCY) - NO_TAIL)
    assert not {(one.symptom, one.name) for one in tails} & others
    for one in tails:
        assert one.tail is not None
        assert one.split == TEST
        assert min(one.ends) > 0
        assert one.ends[0] != one.ends[1]


def test_ten_compounds_begin_their_chain_with_their_own_class() -> None:
    """And lead to at least one other class."""
    chains = of_series(CHAINS)

    assert len(chains) == 10
    assert all(one.chain[0] == one.symptom and len(one.chain) > 1 for one in chains)
    assert not [one for one in MECHANISMS if one.chain and one not in chains]


def test_a_series_of_tails_has_both_levels_of_each_class_in_each_round() -> None:
    """Seeds of development and of the test are apart, and no name is used twice."""
    dev, test = list(series(TAILS_DEV, 2)), list(series(TAILS, 2))
    names = [one.name for one in [*dev, *test, *series(CHAINS, 1), *series(CHAINS_DEV, 1)]]

    assert len(names) == len(set(names))
    assert {one.seed // 1000 for one in dev} == {8}
    assert {one.seed // 1000 for one in test} == {9}
    half = len(test) // 2
    assert [(one.mechanism.name, one.level) for one in test[:half]] == [
        (mechanism.name, level) for mechanism in of_series(TAILS) for level in Level
    ]


# --- harm ----------------------------------------------------------------------------------


def test_late_first_tokens_are_a_ratio_to_the_reference() -> None:
    """A request that has none counts as late until now; a refused one, and a culprit's, not."""
    usual = [sent(number, 100) for number in range(20)]
    refused = [sent(99, None, status=400) for _ in range(5)]
    culprits = [sent(98, 9000, is_culprit=True) for _ in range(5)]
    slow = [sent(number, 100) for number in range(18)] + [sent(18, 250), sent(19, 300)]
    stuck = [*slow[:18], *(sent(18, None, status=0, error="unfinished") for _ in range(2))]

    assert reached(LATE, usual, usual, 0).value == 1.0
    assert reached(LATE, usual, [*slow, *refused, *culprits], 0).value == 2.5
    assert reached(LATE, usual, stuck, 1018 * MS).value == 10.0
    assert reached(LATE, usual, slow[:5], 0).value is None


def test_gaps_are_a_share_of_the_requests() -> None:
    """Each counts once; short ones can be left out."""
    log = [sent(number, 10, 50, 150 if number % 3 == 0 else 60, 120) for number in range(9)]
    calm = [sent(number, 10, 50, 60) for number in range(9)]
    long_only = Harm(measure=HarmMeasure.GAP_SHARE, least_tokens=4)

    assert reached(GAPS, calm, log, 0).value == 1.0
    assert reached(GAPS, log, calm, 0).value == 0.0
    assert reached(GAPS, calm, [*log[:4], *calm[:6]], 0).value == pytest.approx(0.4)
    assert reached(long_only, calm, [*log, *calm], 0).value == 1.0


# --- the search ----------------------------------------------------------------------------


def search(curve: dict[str, float], band: Band) -> list[Probe]:
    """Probe a curve value(place) = low * (high / low) ** place until the search ends."""
    tried: list[Probe] = []
    for step in range(MOST_STEPS):
        place = next_place(tried, band, MOST_STEPS - step)
        if place is None:
            break
        value = curve["low"] * (curve["high"] / curve["low"]) ** place
        tried.append(Probe(place, value))
    return tried


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("high", [8.0, 20.0, 400.0])
def test_the_search_ends_in_the_band_within_its_steps(level: Level, high: float) -> None:
    """However steep harm rises, as long as it rises that far."""
    band = BANDS[HarmMeasure.TTFT_P95, level]
    tried = search({"low": 1.0, "high": high}, band)

    best = nearest(tried, band)
    assert best is not None
    assert band.has(best.value)
    assert len(tried) <= MOST_STEPS


def test_a_fault_that_never_gets_so_strong_is_tried_at_its_fierce_end() -> None:
    """Then the search ends, and what it reached is below the band."""
    band = BANDS[HarmMeasure.TTFT_P95, Level.UPPER]
    tried = search({"low": 1.0, "high": 2.0}, band)
    best = nearest(tried, band)

    assert best is not None
    assert best.place == max(one.place for one in tried) == 1.0
    assert not band.has(best.value)


def test_a_probe_in_which_nothing_was_served_is_above_every_band() -> None:
    """And noise that turns the curve around does not end the search at once."""
    band = Band(1.6, 2.0, 2.5)

    assert next_place([Probe(0.35, None)], band, 5) == pytest.approx(0.175)
    assert next_place([Probe(0.3, 3.0), Probe(0.6, 1.2)], band, 4) == pytest.approx(0.45)
    assert next_place([Probe(0.3, 2.0)], band, 4) is None
    assert next_place([], band, 0) is None
    assert nearest([Probe(0.35, None)], band) is None


def test_a_reference_in_which_many_have_gaps_cannot_be_compared_with() -> None:
    """Late first tokens are a ratio: any reference that was measured will do."""
    assert is_calm(HarmMeasure.GAP_SHARE, 0.1)
    assert not is_calm(HarmMeasure.GAP_SHARE, 0.5)
    assert is_calm(HarmMeasure.TTFT_P95, 500.0)
    assert not is_calm(HarmMeasure.TTFT_P95, None)


@pytest.mark.parametrize("ends", [(2.0, 80.0), (64.0, 4.0)])
def test_intensities_lie_between_the_ends_on_a_geometric_scale(ends: tuple[float, float]) -> None:
    """From gentle to fierce, also where fierce is the smaller number."""
    places = [intensity_at(place / 4, ends) for place in range(5)]

    assert (places[0], places[-1]) == ends
    ratios = [after / before for before, after in itertools.pairwise(places)]
    assert ratios == pytest.approx([ratios[0]] * 4, rel=1e-2)


def found_at(mechanism: Mechanism, intensity: float) -> list[Calibration]:
    return [
        Calibration(
            symptom=mechanism.symptom,
            mechanism=mechanism.name,
            level=level,
            intensity=intensity,
            value=2.0,
            is_met=True,
            reference=100.0,
            tried=(),
        )
        for level in Level
    ]


def test_a_search_serves_later_rounds_until_it_is_old_or_was_wrong(tmp_path: Path) -> None:
    """It is kept in a file, so that a series that was stopped goes on with it."""
    mechanism, searches, now_s = of_series(TAILS)[0], list[str](), [0.0]

    def measure(one: Mechanism, folder: Path) -> list[Calibration]:
        searches.append(one.name)
        return found_at(one, float(len(searches)))

    def intensity() -> float:
        kept = Intensities(tmp_path, measure, lambda: now_s[0])
        return kept.of(mechanism, Level.UPPER).intensity

    assert [intensity(), intensity()] == [1.0, 1.0]
    now_s[0] = GOOD_FOR_S + 1
    assert intensity() == 2.0
    Intensities(tmp_path, measure).forget(mechanism)
    assert intensity() == 3.0


# --- healthy traffic -----------------------------------------------------------------------


def test_a_ramp_goes_from_low_to_high_and_back() -> None:
    """Thinned arrivals follow it: most come in the middle."""
    rate = ramp(1.0, 9.0, 100.0)
    found = thinned(np.random.default_rng(1), rate, 9.0, 100.0)
    middle = sum(25 <= at_s < 75 for at_s in found)

    assert (rate(0), rate(50), rate(100)) == pytest.approx((1.0, 9.0, 1.0))
    assert len(found) == pytest.approx(500, rel=0.15)
    assert middle > 0.7 * len(found)


def test_bursts_are_states_of_two_rates() -> None:
    """Calm at first, then in turns; calm lasts longer."""
    found = states(np.random.default_rng(2), 1.0, 6.0, 2000.0)
    rate = stepwise(found)
    busy_s = sum(rate(at_s) == 6.0 for at_s in range(2000))

    assert [value for _, value in found[:4]] == [1.0, 6.0, 1.0, 6.0]
    assert 0.1 < busy_s / 2000 < 0.35
    assert rate(found[1][0] - 0.01) == 1.0
    assert rate(found[1][0]) == 6.0


def test_healthy_patterns_stay_below_capacity() -> None:
    """Every one is health, none has culprits."""
    for one in of_series(SOAK):
        assert not one.is_fault
        assert max(one.levels) <= 0.85
