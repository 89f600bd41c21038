"""Streams that get a token in each step are counted together: what comes out is what their rows,
looked at one by one, would say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import BUCKET_NS, Counts
from diagnosis.detection.steady_rows import SteadyRows
from diagnosis.detection.window import window_of
from diagnosis.promises.book_keeper import BookKeeper
from lab.twins.registry import TWINS
from telemetry.facts.engine_records import Row, SequencesListed, StepRecorded
from telemetry.facts.records import Fact, RequestsListed, SequenceSubmitted, fact_ns
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    prefill,
    queued,
    request_ended,
    step,
    submitted,
    tokenized,
)
from tests.support.worlds.twins.cases import twin

LIMIT_MS = 40
KINDS: tuple[Callable[[int], Row] | None, ...] = (
    decode,
    decode,
    decode,
    None,  # no row
    lambda seq_id: Row(seq_id, False, 3, 5, 0, 2, False),  # a draft was accepted
    lambda seq_id: Row(seq_id, False, 1, 5, 0, 1, True),  # wasted
    lambda seq_id: prefill(seq_id),
)


class Tokens:
    """What is known of each sequence: its tokens, the longest gap and the last commit."""

    def __init__(self, is_together: bool) -> None:
        self.tokens: Counter[int] = Counter()
        self.worst_ns: Counter[int] = Counter()
        self.last_ns: dict[int, int] = {}
        self.late: list[tuple[int, int]] = []
        self.looked_at = 0
        self.steady = SteadyRows(self._add)
        self._is_together = is_together

    def _add(self, seq_id: int, tokens: int, worst_ns: int, at_ns: int) -> None:
        self.tokens[seq_id] += tokens
        self.worst_ns[seq_id] = max(self.worst_ns[seq_id], worst_ns)
        self.last_ns[seq_id] = at_ns

    def step(self, fact: StepRecorded) -> None:
        for row in self.steady.step(fact):
            self.looked_at += 1
            if not row.sampled or row.wasted:
                continue
            gap_ns = fact.committed_ns - self.last_ns.get(row.seq_id, fact.committed_ns)
            if gap_ns > LIMIT_MS * MS:
                self.late.append((row.seq_id, gap_ns))
            self._add(row.seq_id, row.sampled, gap_ns, fact.committed_ns)
            if self._is_together:
                self.steady.join(row.seq_id, LIMIT_MS * MS)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 50),  # how long the step takes
            st.lists(st.sampled_from(KINDS), min_size=4, max_size=4),
            st.sampled_from([None, None, 0, 1, 2, 3, "all"]),  # who is asked for before it
        ),
        min_size=1,
        max_size=100,
    )
)
def test_tokens_and_gaps_are_those_of_the_rows(
    steps: list[tuple[int, list[Callable[[int], Row] | None], Any]],
) -> None:
    together, alone, at_ms = Tokens(True), Tokens(False), 0
    for number, (length_ms, kinds, asked) in enumerate(steps):
        if asked == "all":
            together.steady.settle()
            assert (together.tokens, together.last_ns) == (alone.tokens, alone.last_ns)
        elif asked is not None:
            together.steady.leave(asked)
            assert together.tokens[asked] == alone.tokens[asked]
        rows = [kind(seq_id) for seq_id, kind in enumerate(kinds) if kind is not None]
        fact = step(number, at_ms, at_ms + length_ms, rows)
        at_ms += length_ms
        together.step(fact)
        alone.step(fact)
    together.steady.clear()

    assert together.tokens == alone.tokens
    assert together.worst_ns == alone.worst_ns
    assert together.last_ns == alone.last_ns
    assert together.late == alone.late


def test_of_a_running_stream_no_row_is_looked_at_after_its_first() -> None:
    known = Tokens(True)
    for number in range(1000):
        known.step(step(number, 20 * number, 20 * number + 20, [decode(1), decode(2)]))
    known.steady.settle()

    assert known.looked_at == 2
    assert known.tokens == {1: 1000, 2: 1000}
    assert known.worst_ns[1] == 20 * MS


def row_by_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SteadyRows, "join", lambda self, seq_id, limit_ns: None)


WORLDS = [
    ("prefill_interference", "unchunked"),
    ("slow_client", "readers"),
    ("step_failure", TWINS["step_failure"][0]),
    ("cancellation_leak", TWINS["cancellation_leak"][0]),
    ("kv_thrash", TWINS["kv_thrash"][0]),
]


@pytest.mark.parametrize(("name", "mechanism"), WORLDS)
def test_what_is_counted_of_a_server_is_the_same(name: str, mechanism: str) -> None:
    """Sums of every tick, what is known of each request, and its late tokens."""
    facts = twin(name, mechanism).facts
    found = counted(facts)
    with pytest.MonkeyPatch.context() as patch:
        row_by_row(patch)
        assert counted(facts) == found


def counted(facts: list[Fact]) -> list[Any]:
    aggregator, found = Aggregator(), list[Any]()
    end_ns = (fact_ns(facts[0]) // BUCKET_NS + 1) * BUCKET_NS
    for fact in facts:
        aggregator.on_fact(fact)
        if fact_ns(fact) >= end_ns + BUCKET_NS:
            found.append(counts_of(aggregator.counts(end_ns - BUCKET_NS, end_ns)))
            found.append(aggregator.requests.open_lengths())
            end_ns += BUCKET_NS
    aggregator.requests.open_lengths()  # brings all of them up to date
    ids = [fact.seq_id for fact in facts if isinstance(fact, SequenceSubmitted)]
    states = [aggregator.requests.state(seq_id) for seq_id in ids]
    found += [(one.tokens, one.last_ns, one.stage) for one in states if one is not None]
    found.append([one._replace(request=None) for one in aggregator.requests.late.late])  # type: ignore[arg-type]
    return found


def counts_of(counts: Counts) -> tuple[Any, ...]:
    return (
        round(counts.later_tokens, 6),
        counts.live_ns,
        counts.zombie_rows_by_sequence,
        counts.first_commit_logs,
    )


@pytest.mark.parametrize(("name", "mechanism"), WORLDS)
def test_what_is_promised_is_judged_the_same(name: str, mechanism: str) -> None:
    one = twin(name, mechanism)
    found = judged(one.facts, one.policy)
    with pytest.MonkeyPatch.context() as patch:
        row_by_row(patch)
        assert judged(one.facts, one.policy) == found


def judged(facts: list[Fact], policy: SloPolicy) -> list[Any]:
    keeper, found = BookKeeper(policy), list[Any]()
    end_ns = fact_ns(facts[0])
    for fact in facts:
        keeper.on_fact(fact)
        if fact_ns(fact) >= end_ns:
            keeper.tick(end_ns)
            for name, book in keeper.books.items():
                long = book.attainment.long()
                found.append((name, long, book.worst_gap_p95_ns(), book.parts(), book.excess_ns))
            end_ns += BUCKET_NS
    return found


def test_the_lost_ends_of_several_choices_end_their_request_once() -> None:
    keeper = BookKeeper(DEFAULT_POLICY)
    for fact in (accepted(), submitted(seq_id=1), submitted(seq_id=2)):
        keeper.on_fact(fact)
    keeper.on_fact(SequencesListed(at_ns=9 * MS, seq_ids=(), last_seq_id=2))

    assert keeper.live == 0


def running(until_ms: int = 100) -> Aggregator:
    """A request whose sequence gets a token every ten milliseconds."""
    aggregator = Aggregator()
    first = step(0, 3, 10, [prefill(1)])
    for fact in (accepted(), tokenized(), submitted(), queued(), first):
        aggregator.on_fact(fact)
    decoding(aggregator, 10, until_ms, [decode(1)])
    return aggregator


def decoding(aggregator: Aggregator, from_ms: int, until_ms: int, rows: list[Row]) -> None:
    for at_ms in range(from_ms, until_ms, 10):
        aggregator.on_fact(step(at_ms // 10, at_ms, at_ms + 10, rows))


def test_a_number_that_is_given_again_has_no_tokens_of_the_sequence_before() -> None:
    aggregator = running()
    before = aggregator.requests.state(1)
    aggregator.on_fact(accepted("r2", 101))
    aggregator.on_fact(submitted("r2", 102))
    aggregator.requests.open_lengths()
    now = aggregator.requests.state(1)

    assert before is not None
    assert now is not None
    assert (before.tokens, now.tokens) == ({1: 10}, {1: 0})


def test_a_further_choice_of_a_running_request_is_not_late() -> None:
    aggregator = running()
    aggregator.on_fact(submitted(at=101, seq_id=2))
    decoding(aggregator, 100, 400, [decode(1)])
    decoding(aggregator, 400, 410, [decode(1), prefill(2)])

    assert list(aggregator.requests.late.late) == []


def test_a_gap_is_late_by_the_target_that_came_last() -> None:
    aggregator = running()
    aggregator.on_fact(replace(queued(at=101), itl_target_ns=20 * MS))
    aggregator.on_fact(step(10, 100, 130, [decode(1)]))

    assert [one.limit_ns for one in aggregator.requests.late.late] == [20 * MS]


def test_a_sequence_with_two_rows_in_a_step_is_looked_at() -> None:
    known = Tokens(True)
    for number in range(3):
        known.step(step(number, 20 * number, 20 * number + 20, [decode(1), decode(2)]))
    rows = [decode(1), prefill(1), decode(2)]

    assert list(known.steady.step(step(3, 60, 80, rows))) == rows


def test_a_window_has_the_lengths_so_far_and_who_was_in_flight_in_it() -> None:
    """Those that run, those that ended in it, and those whose end was lost."""
    aggregator = running()
    assert window_of(aggregator, 0, 100 * MS).counts.open_lengths == [10]
    for fact in (accepted("r2", 5), accepted("r3", 150), request_ended("r1", 110)):
        aggregator.on_fact(fact)
    aggregator.on_fact(RequestsListed(at_ns=120 * MS, request_ids=()))

    def active(begin_ms: int, end_ms: int) -> set[str]:
        found = aggregator.requests.active(begin_ms * MS, end_ms * MS)
        return {one.request_id for one in found}

    assert active(0, 100) == {"r1", "r2"}
    assert active(100, 200) == {"r1", "r3"}
    assert active(115, 200) == {"r3"}
