"""A burst that drains is not said for long; what comes back is said until it is over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diagnosis.detection.tail_thresholds import FALL_TICKS
from diagnosis.thresholds import SUM_CEILING
from diagnosis.verdicts.passing import OneBlow


def passed(levels: list[float], said_from: int = 0) -> list[bool]:
    """Of an alarm whose highest sum has these levels; two others are at rest."""
    blow, found = OneBlow(), list[bool]()
    for tick, level in enumerate(levels):
        blow.add((level, 0.0, 0.2), 1.0, is_said=tick >= said_from)
        found.append(blow.has_passed)
    return found


def test_one_blow_has_passed_when_its_sums_have_been_falling_for_three_seconds() -> None:
    found = passed([1.5 - 0.1 * tick for tick in range(10)])

    assert found == [False] * FALL_TICKS + [True] * (10 - FALL_TICKS)


def test_a_fault_that_goes_on_has_not_passed() -> None:
    assert not any(passed([2.0] * 30))
    assert not any(passed([1.1 + 0.03 * tick for tick in range(30)]))


def test_a_sum_at_its_ceiling_has_not_passed_while_another_falls() -> None:
    """The sum of a queue that grows cannot rise above its ceiling."""
    blow = OneBlow()
    for tick in range(10):
        blow.add((SUM_CEILING, 1.5 - 0.1 * tick), 1.0, is_said=True)

    assert not blow.has_passed


def test_what_came_back_once_is_held_whatever_its_sums_do() -> None:
    falls = [1.5 - 0.1 * tick for tick in range(10)]
    found = passed([*falls, 1.2, 1.4, *falls])

    assert found[9]
    assert not any(found[10:])


def test_a_blow_of_which_nothing_was_said_is_not_one_that_came_back() -> None:
    """A burst may come in two parts, of which the first is too short to be named."""
    falls = [1.5 - 0.1 * tick for tick in range(10)]
    found = passed([*falls, 1.2, 1.4, *falls], said_from=12)

    assert found[9]
    assert not found[11]
    assert found[-1]


def test_a_queue_drains_when_fewer_than_half_as_many_are_delayed_as_at_its_worst() -> None:
    """Long before its sums, which are cut at their ceiling, have been falling for three seconds."""
    blow, found = OneBlow(), list[bool]()
    for delayed in (30.0, 30.0, 20.0, 14.0, 18.0, 6.0):
        blow.add((SUM_CEILING, 0.3), delayed, is_said=True)
        found.append(blow.is_draining)

    assert found == [False, False, False, True, False, True]
    assert not blow.has_passed


def test_a_long_queue_is_said_until_half_of_it_drains_within_three_seconds() -> None:
    """Half of four hundred delayed requests are still an overload."""
    blow, found = OneBlow(), list[bool]()
    for delayed in (400.0, *[400.0 - 20 * tick for tick in range(20)]):
        blow.add((SUM_CEILING, 0.3), delayed, is_said=True)
        found.append(blow.is_draining)

    assert found.index(True) == 16
    assert all(found[16:])


def test_a_queue_that_came_back_once_is_said_while_it_drains() -> None:
    falls = [1.5 - 0.1 * tick for tick in range(10)]
    blow = OneBlow()
    for level in (*falls, 1.2, 1.4, 1.2):
        blow.add((level, 0.0), 10.0 * level - 5.0, is_said=True)
    blow.add((1.1, 0.0), 0.0, is_said=True)

    assert not blow.is_draining


@given(st.lists(st.floats(0, 2), max_size=40))
def test_it_passes_once_at_most(levels: list[float]) -> None:
    found = passed(levels)
    changes = [now for before, now in zip([False, *found], found, strict=False) if now != before]

    assert changes in ([], [True], [True, False])
