"""Streams that get a token in each step are counted together: what comes out is what their rows,
looked at one by one, would say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import BUCKET_NS, Counts
from diagnosis.detection.steady_rows import SteadyRows
from diagnosis.promises.book_keeper import BookKeeper
from lab.twins.registry import TWINS
from telemetry.facts.engine_records import Row, SequencesListed, StepRecorded
from telemetry.facts.records import Fact, SequenceSubmitted, fact_ns
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from tests.support.worlds.facts import MS, accepted, decode, prefill, step, submitted
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
