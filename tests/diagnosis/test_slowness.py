"""Turns of a slow window are put back to those of a usual one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from diagnosis.root_cause.question import Question, Span
from diagnosis.root_cause.slowness import without_residual, without_stalls
from lab.replay.noise import Disturbance

MS = 1_000_000
REFERENCE, WINDOW = Span(0, 1_000 * MS), Span(1_000 * MS, 2_000 * MS)


def asked(usual: list[float], slow: list[float]) -> Question:
    """Turns of ten ms, so many times longer than foretold."""
    turns = [Disturbance(n * 10 * MS, 10 * MS, one, 0) for n, one in enumerate(usual)]
    turns += [Disturbance((1_000 + n * 10) * MS, 10 * MS, one, 0) for n, one in enumerate(slow)]
    cost: Any = SimpleNamespace(disturbances=tuple(turns))
    run: Any = None
    return Question(run, cost, REFERENCE, WINDOW)


def put_back(question: Question) -> list[float]:
    calm = without_residual(question)
    assert calm is not None
    return [one.ratio for one in calm(question.cost.disturbances)]


def test_turns_are_as_long_as_the_usual_ones_of_their_rank() -> None:
    """A starved core makes one turn in four three times longer and the others not at all: after it
    none is longer than the longest usual one, and the others are spared nothing."""
    usual, slow = [0.9, 1.0, 1.0, 1.1], [1.0, 3.0, 0.9, 1.0]

    assert put_back(asked(usual, slow)) == [*usual, 1.0, 1.1, 0.9, 1.0]


def test_what_was_quicker_stays_so_and_what_is_usual_is_no_cause() -> None:
    assert put_back(asked([1.0] * 4, [0.5, 2.0, 2.0, 2.0]))[4:] == [0.5, 1.0, 1.0, 1.0]
    assert without_residual(asked([1.0] * 4, [1.05] * 4)) is None
    assert without_residual(asked([1.0] * 4, [])) is None


def test_a_longer_window_than_reference_is_put_back_by_rank_all_the_same() -> None:
    assert put_back(asked([1.0, 1.2], [2.0, 2.1, 3.0, 3.1]))[2:] == [1.0, 1.0, 1.2, 1.2]


def test_what_is_behind_the_window_stays_as_it_was() -> None:
    """It may be slow for another reason, which nobody asked about."""
    question = asked([1.0] * 4, [2.0] * 4)
    later = Disturbance(WINDOW.end_ns, 10 * MS, 3.0, 500 * MS)
    stall = later._replace(begin_ns=WINDOW.begin_ns + 50 * MS)
    turns = (*question.cost.disturbances, stall, later)
    cost: Any = SimpleNamespace(disturbances=turns)
    found = Question(question.run, cost, REFERENCE, WINDOW)

    for without in (without_residual, without_stalls):
        calm = without(found)
        assert calm is not None
        *_, stalled, last = calm(turns)
        assert stalled != stall
        assert last == later
