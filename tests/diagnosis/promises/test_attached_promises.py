"""Promises of an attached engine, of whose requests not all are seen in its core."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diagnosis.promises.book_keeper import BookKeeper
from diagnosis.promises.class_book import ClassBook
from diagnosis.promises.requests import Missed
from telemetry.facts.records import Fact
from telemetry.requests.slo_policy import DEFAULT_POLICY
from tests.support.worlds.facts import MS, accepted, parsed, request_ended, submitted, tokenized

STREAMING: tuple[Fact, ...] = (accepted(attached=True), parsed(), tokenized())


class Books:
    """The books after each stretch of facts; there is one class."""

    def __init__(self) -> None:
        self.keeper = BookKeeper(DEFAULT_POLICY)

    def at(self, now_ms: int, facts: Sequence[Fact]) -> ClassBook:
        for fact in facts:
            self.keeper.on_fact(fact)
        self.keeper.tick(now_ms * MS)
        (book,) = self.keeper.books.values()
        return book


def test_a_request_of_which_no_core_has_told_misses_nothing() -> None:
    """It has streamed for ten seconds, from a second core."""
    books = Books()
    book = books.at(10_000, STREAMING)

    assert not book.misses
    book = books.at(10_500, [request_ended(at=10_100)])
    assert not book.misses
    assert book.attainment.long().requests == 0
    assert books.keeper.live == 0


def test_a_request_of_our_own_engine_waits_from_the_start() -> None:
    """There each sequence is known from its submission on."""
    book = Books().at(10_000, (accepted(), parsed(), tokenized()))

    assert [one.what for one in book.misses] == [Missed.FIRST_TOKEN]


@pytest.mark.parametrize("is_due_before", [True, False])
def test_a_request_is_judged_when_its_core_has_told_of_it(is_due_before: bool) -> None:
    """The core may have been busy with a long step; the request has waited all that time."""
    books = Books()
    if is_due_before:
        assert not books.at(10_000, STREAMING).misses
        book = books.at(10_500, [submitted()])
    else:
        book = books.at(10_500, [*STREAMING, submitted()])

    assert [one.what for one in book.misses] == [Missed.FIRST_TOKEN]
    assert list(book.overdue) == ["r1"]
