"""A sweep over thresholds changes what it says it changes, and nothing after it."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis.sensitivity.changes import Changes, Variant, changed, variants
from benchmarks.diagnosis.sensitivity.result import Effect
from benchmarks.diagnosis.sensitivity.shared import Record, judge_all
from benchmarks.diagnosis.sensitivity.summary import rows_of
from benchmarks.diagnosis.sensitivity.sweep import RECORD, ROOT, TWIN, Judged, Said, changes_for
from benchmarks.diagnosis.virtual.twins import live_through
from diagnosis.detection import excess
from diagnosis.threshold_table import Threshold, table
from diagnosis.thresholds import THRESHOLD
from lab.twins.registry import build_twin

SEED = 7100


def row(value: float | tuple[float, ...], unit: str = "s") -> Threshold:
    return Threshold("LIMIT", value, unit, "when it is over", "a reason", "some.thresholds")


def variant(name: str, factor: float) -> Variant:
    (found,) = (one for one in variants() if one.row.name == name and one.factor == factor)
    return found


@pytest.mark.parametrize(
    ("value", "unit", "smaller", "larger"),
    [
        (10.0, "s", 8.0, 12.5),
        (100, "ticks", 80, 125),
        (2, "ticks", 1, 3),
        (1, "sequences", 1, 2),
        (0.4, "probability", 0.32, 0.5),
        (0.99, "quantile", 0.9875, 0.992),
        ((1.0, 2.0), "ratio", (0.8, 1.6), (1.25, 2.5)),
    ],
)
def test_a_number_becomes_smaller_and_larger_and_stays_possible(
    value: float, unit: str, smaller: float, larger: float
) -> None:
    assert changed(row(value, unit), 0.8) == pytest.approx(smaller)
    assert changed(row(value, unit), 1.25) == pytest.approx(larger)


def test_every_number_of_the_table_is_moved() -> None:
    assert {one.row.name for one in variants()} == {one.name for one in table()}


def test_a_change_reaches_what_modules_made_of_the_number_and_is_taken_back() -> None:
    """`excess` makes its limits of thresholds when it is imported."""
    limits = vars(excess)["_LIMITS"]
    with Changes(variant("THRESHOLD", 1.25)).applied():
        assert vars(excess)["THRESHOLD"] == 1.25 * THRESHOLD
        assert vars(excess)["_LIMITS"][0][0] == 1.25 * THRESHOLD

    assert vars(excess)["THRESHOLD"] == THRESHOLD
    assert vars(excess)["_LIMITS"] is limits


def test_changes_take_part_where_their_numbers_are_used() -> None:
    """Numbers of replays decide no verdict, and those of alarms no root cause."""
    of_verdicts = {one.variants[0].row.name for one in changes_for(TWIN)}
    of_roots = {one.variants[0].row.name for one in changes_for(ROOT)}

    assert {"THRESHOLD", "GROWN_LENGTH", "LEAST_INVALID", "OUTLIER"} <= of_verdicts
    assert {"GROWN_LENGTH", "MOVED", "STALL", "OUTLIER"} <= of_roots
    assert not {"MOVED", "STALL"} & of_verdicts
    assert not {"THRESHOLD", "LEAST_INVALID"} & of_roots


@pytest.mark.long
@pytest.mark.parametrize("name", ["queue_overload", "budget_too_small"])
def test_verdicts_over_a_shared_fold_are_those_of_a_diagnoser_alone(name: str) -> None:
    """With a change of each room; the second twin is compared with a record of a good server."""
    twin = build_twin(name, SEED)
    changes = [
        Changes(variant(number, factor))
        for number, factor in (
            ("THRESHOLD", 0.8),
            ("GROWN_DEMAND", 1.25),
            ("LEAST_DELAYED", 0.8),
            ("LEAST_SHARE", 1.25),
            ("SLOW", 0.8),
        )
    ]
    plain, *found = judge_all(Record(twin.facts, twin.before, twin.policy), changes)

    assert plain == live_through(twin)
    for change, verdicts in zip(changes, found, strict=True):
        with change.applied():
            alone = live_through(twin)
        assert verdicts == alone, change.variants[0].name


def test_a_summary_counts_answers_that_differ_and_right_ones_lost() -> None:
    """Of two twins and a record."""
    one, other = variant("MOST", 0.8), variant("MOST", 1.25)
    right, wrong = Said(answer="throttled", is_right=True), Said(answer="healthy", is_right=False)
    alarmed = Said(answer="throttled", is_right=True, alarms=2)
    judged = [
        Judged(kind=TWIN, name="a", plain=right, changed={one.name: wrong, other.name: right}),
        Judged(kind=TWIN, name="b", plain=wrong, changed={one.name: right, other.name: wrong}),
        Judged(kind=RECORD, name="c", plain=right, changed={one.name: right, other.name: alarmed}),
    ]
    (found,) = rows_of(judged, [one, other])

    assert found.kinds == (RECORD, TWIN)
    assert found.changed[0].effects == {TWIN: Effect(differ=2, lost=1, gained=1)}
    assert found.changed[1].effects == {RECORD: Effect(alarms=2)}
    assert (found.differ, found.touched) == (2, 2)
