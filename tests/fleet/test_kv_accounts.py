"""Where the time of a transfer went, and what a choice of its way was worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.fleet.transfer.remote_parts import remote_parts
from telemetry.facts.engine_records import SequenceAdmitted, SequenceEnded, SequenceQueued
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvLost,
    KvReserved,
    KvSealed,
    KvSplitChosen,
    RemoteParts,
    Way,
)
from telemetry.facts.reasons import EndReason, FactSource, Phase
from telemetry.facts.records import Fact, FactsLost
from telemetry.ledger.builder import LedgerBuilder
from telemetry.numbers.intervals import Interval, length_ns, overlap, union
from telemetry.requests.account import Part
from telemetry.requests.kv_accounts import KvAccount, KvAccounts, KvPart, kv_spans, parts_within
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.split_regret import SplitOutcome, SplitRegret
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)

INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda one: (one[0], one[0] + one[1])),
    max_size=8,
)
STAMPS = st.lists(st.integers(0, 10**12), min_size=5, max_size=5).map(sorted)
PARTS = st.builds(RemoteParts, *(st.integers(0, 10**12) for _ in range(4)))


def cells(intervals: list[Interval]) -> set[int]:
    return {at for begin, end in intervals for at in range(begin, end)}


@given(one=INTERVALS, other=INTERVALS)
def test_unions_and_overlaps_are_those_of_sets(one: list[Interval], other: list[Interval]) -> None:
    assert cells(union(one)) == cells(one)
    assert length_ns(union(one)) == len(cells(one))
    assert cells(overlap(union(one), union(other))) == cells(one) & cells(other)


@given(begin=st.integers(0, 40), length=st.integers(0, 60), computed=INTERVALS, pushed=INTERVALS)
def test_what_no_compute_hides_of_a_transfer_is_exposed(
    begin: int, length: int, computed: list[Interval], pushed: list[Interval]
) -> None:
    window = set(range(begin, begin + length))
    parts = remote_parts(begin, begin + length, computed, pushed)

    assert parts.elapsed_ns == length
    assert parts.compute_ns == len(cells(computed) & window)
    assert parts.exposed_ns == len((cells(pushed) - cells(computed)) & window)
    assert parts.hidden_ns == len(cells(pushed) & cells(computed) & window)


def queued(at_ns: int) -> SequenceQueued:
    return SequenceQueued(
        seq_id=1, at_ns=at_ns, step_id=0, prompt_tokens=9, max_tokens=4, tenant="", receives_kv=7
    )


def transfer(stamps: list[int], remote: RemoteParts) -> list[Fact]:
    """Queued, reserved, sealed, taken, in the batch."""
    at = stamps
    return [
        queued(at[0]),
        KvReserved(1, at[1], 0, 7, 3, 0),
        KvSealed(1, at[2], 7, 3, 300, remote),
        KvAdmitted(1, at[3], 0, 7),
        SequenceAdmitted(1, at[4], 0, 10, 0, 0, 0, 9),
    ]


def account_of(facts: list[Fact]) -> KvAccount:
    fold = KvAccounts()
    (found,) = [account for fact in facts if (account := fold.take(fact)) is not None]
    return found


@given(stamps=STAMPS, remote=PARTS)
def test_the_parts_of_a_transfer_sum_to_its_time(stamps: list[int], remote: RemoteParts) -> None:
    """However long the other engine says that it took, in its own clock."""
    account = account_of(transfer(stamps, remote))

    assert sum(account.parts.values()) == account.elapsed_ns == stamps[4] - stamps[0]
    assert account.parts[KvPart.TRANSFER] == remote.exposed_ns
    assert account.parts[KvPart.WIRE] == stamps[2] - stamps[1] - remote.elapsed_ns
    assert account.fault is None


@given(stamps=STAMPS, remote=PARTS)
def test_spans_tile_the_account(stamps: list[int], remote: RemoteParts) -> None:
    account = account_of(transfer(stamps, remote))
    spans = kv_spans(account)

    assert [span.name for span in spans] == ["kv.reserve", "kv.transfer", "kv.seal", "kv.wait"]
    assert spans[0].begin_ns == account.begin_ns
    assert [s.end_ns for s in spans[:-1]] == [s.begin_ns for s in spans[1:]]
    assert spans[-1].end_ns == account.end_ns
    assert spans[1].attributes["kv.bytes"] == 300
    assert spans[1].attributes["kv.hidden_ns"] == remote.hidden_ns


@given(
    stamps=STAMPS,
    remote=PARTS,
    begin_ns=st.integers(0, 10**12),
    length_ns=st.integers(0, 10**12),
)
def test_parts_that_are_cut_to_a_window_sum_to_its_length(
    stamps: list[int], remote: RemoteParts, begin_ns: int, length_ns: int
) -> None:
    account = account_of(transfer(stamps, remote))
    begin_ns = max(begin_ns, account.begin_ns)
    end_ns = min(begin_ns + length_ns, account.end_ns)
    if begin_ns < end_ns:
        parts = parts_within(account, begin_ns, end_ns)
        assert sum(ns for _, ns in parts) == end_ns - begin_ns
    whole = parts_within(account, account.begin_ns, account.end_ns)
    assert dict(whole) == {part: ns for part, ns in account.parts.items() if ns}


def timeline_of(transferred: list[Fact]) -> RequestTimeline:
    """Of a request whose KV comes: submitted at 2 ms, and in a step from 54 to 64."""
    found: list[RequestTimeline] = []
    fold = PhaseFold([found.append], ledger_builder=LedgerBuilder(lambda slo_class: 10**9))
    facts: list[Fact] = [accepted(at=0), parsed(at=1), tokenized(at=1), submitted(at=2)]
    facts += transferred
    facts += [step(0, 54, 64, [decode(1)]), sequence_ended(1, 64), request_ended(at=70)]
    fold.on_facts(facts)
    fold.close()
    (timeline,) = found
    return timeline


REMOTE = RemoteParts(3 * MS, 20 * MS, 6 * MS, 4 * MS)
"""Of a transfer that is reserved at 12 ms, sealed at 50, taken at 52."""
TRANSFER = transfer([2 * MS, 12 * MS, 50 * MS, 52 * MS, 55 * MS], REMOTE)


def test_the_ledger_has_the_parts_and_the_phases_follow_the_transfer() -> None:
    timeline = timeline_of(TRANSFER)

    (sequence,) = timeline.sequences
    assert sequence.token_ns == (52 * MS, 64 * MS)
    assert timeline.phase_ns(Phase.PREFILL) == 40 * MS  # from the reservation to the first token
    assert timeline.account is not None
    ledger = timeline.account.ledger
    assert ledger.residue_ns == 0
    parts = ledger.by_part()
    assert parts[Part.KV_RESERVE] == 10 * MS
    assert parts[Part.KV_QUEUE] == 3 * MS
    assert parts[Part.KV_PREFILL] == 20 * MS
    assert parts[Part.KV_TRANSFER] == 6 * MS
    assert parts[Part.KV_WIRE] == 9 * MS
    assert parts[Part.KV_SEAL] == 2 * MS
    assert parts[Part.KV_WAIT] == 2 * MS  # until its step began
    assert not parts[Part.REMOTE_KV]


@given(stamps=STAMPS, cut=st.integers(1, 4), by_end=st.booleans())
def test_a_transfer_that_comes_to_nothing_is_lost_time(
    stamps: list[int], cut: int, by_end: bool
) -> None:
    facts = transfer(stamps, RemoteParts(1, 2, 3, 4))[:cut]
    ended = SequenceEnded(1, stamps[4], 0, EndReason.DISCONNECT, 0, 0)
    last = ended if by_end else KvLost(1, stamps[4], 0, 7, KvFault.CORRUPT)
    account = account_of([*facts, last])

    assert sum(account.parts.values()) == account.elapsed_ns
    if not by_end or cut < 4:
        assert account.fault is (KvFault.CANCELLED if by_end else KvFault.CORRUPT)
        assert account.parts.keys() == {KvPart.RESERVE, KvPart.LOST}


def test_a_transfer_whose_reservation_is_not_known_has_no_account() -> None:
    """As a journal has it that begins while the transfer goes on, or after facts were lost."""
    fold = KvAccounts()
    left = [fact for fact in TRANSFER if not isinstance(fact, KvReserved)]

    assert [fold.take(fact) for fact in left] == [None] * 4
    assert fold.open == 0


@given(stamps=STAMPS, remote=PARTS, lost=st.integers(0, 5), by_end=st.booleans())
def test_whichever_fact_of_a_transfer_is_lost_accounts_sum_to_their_time(
    stamps: list[int], remote: RemoteParts, lost: int, by_end: bool
) -> None:
    facts = transfer(stamps, remote)[: 4 if by_end else 5]
    facts.append(SequenceEnded(1, stamps[4], 0, EndReason.DISCONNECT, 0, 0))
    del facts[lost % len(facts)]
    fold = KvAccounts()
    found = [account for fact in facts if (account := fold.take(fact)) is not None]

    assert len(found) <= 1
    assert all(sum(account.parts.values()) == account.elapsed_ns for account in found)


@given(lost=st.integers(0, 4))
def test_whichever_fact_of_a_transfer_is_lost_the_ledger_adds_up(lost: int) -> None:
    timeline = timeline_of([*TRANSFER[:lost], *TRANSFER[lost + 1 :]])

    assert timeline.account is not None
    assert timeline.account.ledger.residue_ns == 0
    assert (timeline.sequences[0].kv is None) == (lost in (0, 1))


@pytest.mark.parametrize(
    ("source", "is_known"), [(FactSource.ENGINE, False), (FactSource.GATEWAY, True)]
)
def test_where_facts_of_the_engine_were_lost_an_open_transfer_has_no_account(
    source: FactSource, is_known: bool
) -> None:
    """What ended it may be among them, and another may have begun."""
    lost = FactsLost(20 * MS, source, 3)
    timeline = timeline_of([*TRANSFER[:2], lost, *TRANSFER[2:]])

    assert timeline.is_incomplete
    assert (timeline.sequences[0].kv is not None) == is_known


def chosen(way: Way) -> KvSplitChosen:
    return KvSplitChosen(
        1, 0, 9, 0, 0, way, local_ns=40 * MS, harm_ns=30 * MS, remote_ns=50 * MS, exposed_ns=5 * MS
    )


def outcomes(facts: list[Fact]) -> list[SplitOutcome]:
    fold = SplitRegret()
    return [outcome for fact in facts for outcome in fold.take(fact)]


def test_regret_is_what_the_other_way_was_predicted_to_save() -> None:
    nothing = RemoteParts(0, 0, 0, 0)
    late, in_time = (
        outcomes([chosen(Way.REMOTE), *transfer([100 * MS, 110 * MS, 115 * MS, at, at], nothing)])
        for at in (190 * MS, 140 * MS)
    )

    assert [(one.took_ns, one.predicted_ns, one.regret_ns) for one in late + in_time] == [
        (90 * MS, 50 * MS, (90 - 70) * MS),
        (40 * MS, 50 * MS, 0),
    ]


def test_regret_of_a_local_prompt_counts_the_harm_to_those_who_decode() -> None:
    """50 ms until its first token, and 30 taken from others, where 50 were predicted."""
    first = step(0, 100, 150, [prefill(1)])
    (found,) = outcomes([chosen(Way.LOCAL), queued(100 * MS), first])

    assert (found.took_ns, found.regret_ns) == (50 * MS, 30 * MS)
