"""The flight recorder's memory and its files: what goes in comes out, bounded and checked."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import (
    EngineStarted,
    SequenceAdmitted,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvLost,
    KvReserved,
    KvSealed,
    RemoteParts,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import (
    EngineDied,
    Fact,
    FactsLost,
    RequestAccepted,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.journal.journal import CAPACITY_BYTES, Journal
from telemetry.journal.journal_reader import (
    open_journal,
)
from telemetry.journal.replay import Replay
from telemetry.requests.kv_accounts import KvAccounts
from tests.support.servers.served import facts_of, served, started
from tests.support.worlds.facts import (
    MS,
    queued,
    request_ended,
    sequence_ended,
    submitted,
)
from tests.support.worlds.journal_facts import (
    SECOND,
    heavy_step,
    kept,
    request,
    saved,
    small,
    steps,
    turn_over,
)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_every_fact_of_a_chaotic_run_is_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    facts = facts_of(served("chaos", seed))
    journal = Journal(ManualClock())
    for batch in batches(facts, data):
        journal.on_facts(batch)

    assert kept(journal, tmp_path_factory.mktemp("journal")) == facts
    assert journal.stats().facts == len(facts)
    assert journal.stats().facts_dropped == 0


def batches(facts: Sequence[Fact], data: st.DataObject) -> list[Sequence[Fact]]:
    """The facts, cut anywhere."""
    borders = data.draw(st.lists(st.integers(0, len(facts)), max_size=20).map(sorted))
    edges = [0, *borders, len(facts)]
    return [facts[a:b] for a, b in pairwise(edges)]


def test_a_journal_has_its_writer_and_its_clock_relative_to_unix_time(tmp_path: Path) -> None:
    journal = Journal(ManualClock(7 * SECOND))
    journal.on_facts(steps(3))
    read = open_journal(saved(tmp_path / "j", journal.frames("stall", facts_lost=5)))

    assert (read.header.reason, read.header.at_ns) == ("stall", 7 * SECOND)
    assert (read.header.facts_lost, read.header.cut_ns) == (5, None)
    assert read.header.anchors[-1].unix_ns > 1_600_000_000 * SECOND
    assert list(read.facts()) == list(read.facts())


def test_facts_wait_no_longer_than_a_second_before_they_are_compressed() -> None:
    clock = ManualClock()
    journal = Journal(clock)
    journal.on_facts(steps(1))
    assert journal.after(-1) == []

    clock.advance(SECOND)
    journal.seal_if_old()

    assert [piece.facts for _, piece in journal.after(-1)] == [1]


def test_the_journal_stays_within_its_memory_and_drops_the_oldest(tmp_path: Path) -> None:
    """Full batches of 256 rows until the ring has turned over several times."""
    capacity = 1 << 20
    clock = ManualClock()
    journal = Journal(clock, capacity)
    most = 0
    for number in range(6000):
        clock.advance(10 * MS)
        journal.on_facts([heavy_step(number, 256)])
        most = max(most, journal.stats().bytes)
    stats = journal.stats()
    facts = kept(journal, tmp_path)
    read = open_journal(tmp_path / "kept.journal")

    assert most <= capacity
    assert 30_000 * most / stats.facts <= CAPACITY_BYTES  # so five minutes fit by default
    assert stats.bytes > capacity * 0.9
    assert stats.is_short
    assert stats.facts + stats.facts_dropped == 6000
    assert [f.step_id for f in facts if isinstance(f, StepRecorded)] == list(
        range(stats.facts_dropped, 6000)
    )
    assert read.header.cut_ns == fact_ns(facts[0])
    assert read.header.facts_dropped == stats.facts_dropped
    assert stats.covered_ns == pytest.approx(stats.facts * 10 * MS, rel=0.01)
    assert sum(map(len, journal.frames("request"))) <= capacity * 1.01


def test_allocated_memory_is_bounded() -> None:
    """As the interpreter measures it, not the journal's own count."""
    capacity = 1 << 20
    clock = ManualClock()
    journal = Journal(clock, capacity)
    tracemalloc.start()
    try:
        for number in range(2500):
            clock.advance(10 * MS)
            journal.on_facts([heavy_step(number, 128)])
        allocated_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert journal.stats().facts_dropped > 400
    assert capacity * 0.9 < allocated_bytes < capacity * 1.5


def test_many_live_requests_count_against_the_memory_too() -> None:
    """Their beginnings are carried along; the ring is shorter for it, not larger."""
    capacity = 1 << 20
    clock = ManualClock()
    journal = Journal(clock, capacity)
    for number in range(2000):
        journal.on_facts(request(f"waiting-{number}", number, at=number))
    for number in range(30_000):
        clock.advance(10 * MS)
        journal.on_facts([heavy_step(number, 16)])

    assert journal.stats().facts_dropped > 0
    assert journal.stats().bytes <= capacity
    assert sum(map(len, journal.frames("request"))) <= capacity * 1.01


# Cut off at its beginning


def test_requests_that_were_live_at_the_cut_keep_their_first_facts(tmp_path: Path) -> None:
    """Those facts are carried over; requests that ended before the cut are gone."""
    journal, clock = small()
    live = request("live", 1, at=1)
    admitted = SequenceAdmitted(1, 2 * MS, 0, 4, 0, 0, 0)
    over = [*request("over", 2, at=1), sequence_ended(2, at=5), request_ended("over", at=6)]
    cost = StepCostSet(3 * MS, 0, 1, 2, 3, 4)
    journal.on_facts([started(0), *live, admitted, cost, *over])
    turn_over(journal, clock)
    journal.on_facts([*request("new", 3, at=40_000)])
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))
    facts = list(read.facts())

    assert read.cut_requests == {"live"}
    wanted = [started(0), cost, *live, admitted]
    assert sorted(map(repr, read.carried)) == sorted(map(repr, wanted))
    assert list(read.carried) == sorted(read.carried, key=fact_ns)
    assert facts[: len(read.carried)] == list(read.carried)
    assert [f.request_id for f in facts if isinstance(f, RequestAccepted)] == ["live", "new"]


def test_an_engine_that_died_before_the_cut_is_not_carried(tmp_path: Path) -> None:
    journal, clock = small()
    journal.on_facts([started(0), *request("failed", 1, at=1), EngineDied(5 * MS, -9, "", 0)])
    journal.on_facts([request_ended("failed", at=6), started(7 * MS, pid=78)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))

    assert [f.pid for f in read.carried if isinstance(f, EngineStarted)] == [78]
    assert read.cut_requests == frozenset()


def test_a_pause_that_goes_on_is_carried_and_one_that_is_over_is_not(tmp_path: Path) -> None:
    journal, clock = small()
    paused, again = SequencePaused(1, 3 * MS, 0), SequencePaused(2, 3 * MS, 0)
    journal.on_facts([*request("a", 1, at=1), *request("b", 2, at=1)])
    journal.on_facts([paused, again, SequenceResumed(2, 4 * MS, 0)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))

    assert [f for f in read.carried if isinstance(f, SequencePaused)] == [paused]


def receiving(request_id: str, seq_id: int) -> list[Fact]:
    """Its KV is to come from another engine, and blocks are reserved for it. The engine's facts are
    here before it is said whose sequence it is."""
    *others, sent, _ = request(request_id, seq_id, at=1)
    waits = SequenceQueued(seq_id, 1 * MS, 0, 9, 4, "", receives_kv=seq_id)
    return [*others, waits, KvReserved(seq_id, 2 * MS, 0, seq_id, 3, 0), sent]


def test_a_kv_transfer_that_goes_on_is_carried_and_one_that_is_over_is_not(
    tmp_path: Path,
) -> None:
    """Cut in its middle, it can be read, and has its whole account."""
    journal, clock = small()
    sealed = [KvSealed(n, 3 * MS, n, 3, 300, RemoteParts(1, 2, 3, 4)) for n in (1, 2)]
    journal.on_facts([*receiving("open", 1), *receiving("in batch", 2), *receiving("local", 3)])
    journal.on_facts([*sealed, KvAdmitted(2, 4 * MS, 0, 2)])
    journal.on_facts([SequenceAdmitted(2, 5 * MS, 1, 9, 0, 0, 0, 9)])
    journal.on_facts([KvLost(3, 5 * MS, 0, 3, KvFault.LEASE)])
    turn_over(journal, clock)
    taken, placed = (
        KvAdmitted(1, 40_000 * MS, 0, 1),
        SequenceAdmitted(1, 40_001 * MS, 9, 9, 0, 0, 0, 9),
    )
    journal.on_facts([taken, placed])
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))
    fold = KvAccounts()
    accounts = [one for fact in read.facts() if (one := fold.take(fact)) is not None]

    carried = [fact for fact in read.carried if isinstance(fact, KvReserved | KvSealed)]
    assert carried == [KvReserved(1, 2 * MS, 0, 1, 3, 0), sealed[0]]
    assert [(one.seq_id, one.bytes, one.elapsed_ns) for one in accounts] == [(1, 300, 40_000 * MS)]
    assert Replay(read).cut == {"open", "in batch", "local"}


def test_of_a_kv_transfer_nothing_is_carried_over_a_gap_in_the_facts_of_its_engine(
    tmp_path: Path,
) -> None:
    """Its end may be in the gap."""
    journal, clock = small()
    journal.on_facts([*receiving("open", 1), FactsLost(3 * MS, FactSource.ENGINE, 9)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))

    assert not [fact for fact in read.carried if isinstance(fact, KvReserved)]
    assert [fact.seq_id for fact in read.carried if isinstance(fact, SequenceQueued)] == [1]


def test_a_request_is_carried_until_its_last_sequence_has_ended(tmp_path: Path) -> None:
    """Two choices: the client is gone, one sequence is not free yet."""
    journal, clock = small()
    journal.on_facts([*request("two", 1, at=1), submitted("two", at=1, seq_id=2), queued(2, at=1)])
    journal.on_facts([sequence_ended(1, at=5), request_ended("two", at=6)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))
    assert read.cut_requests == {"two"}
    assert {f.seq_id for f in read.carried if isinstance(f, SequenceSubmitted)} == {1, 2}

    journal.on_facts([sequence_ended(2, at=40_000)])
    turn_over(journal, clock)
    read = open_journal(saved(tmp_path / "j", journal.frames("request")))
    assert read.cut_requests == frozenset()


def test_lost_ends_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from telemetry.journal import live_requests

    monkeypatch.setattr(live_requests, "_LIVE_KEPT", 50)
    live = live_requests.LiveRequests()
    for number in range(500):
        for fact in request(f"r{number}", number, at=number):
            live.take(fact)

    assert len(live) == 50
    assert len(live.encoded()) == 50


# Damage
