"""What an engine says of KV that others send it, by facts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from diagnosis.routed.diagnoser import RoutedDiagnoser
from diagnosis.routed.symptoms import FleetSymptom
from diagnosis.routed.transfers import Transfers
from telemetry.facts.engine_records import SequenceAdmitted, SequenceQueued
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvLost,
    KvRefused,
    KvReleased,
    KvReserved,
    KvSealed,
    KvSplitChosen,
    KvVerified,
    RemoteParts,
    Way,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import Fact, FactsLost
from tests.support.worlds.piloted import started

MS = 1_000_000
CALM_S, TROUBLE_S = 25, 15
S = FleetSymptom
Make = Callable[[int, int], list[Fact]]


def transfer(
    seq_id: int,
    at_ms: int,
    queue: int = 20,
    exposed: int = 5,
    wait: int = 10,
    corrupt: int = 0,
    local_ms: int = 500,
) -> list[Fact]:
    """One transfer, with its times in ms."""
    at_ns, epoch = at_ms * MS, seq_id
    remote = RemoteParts(queue * MS, 100 * MS, exposed * MS, 0)
    sealed_ns = at_ns + (1 + queue + 100 + exposed) * MS
    verified_ns = sealed_ns + 2 * MS
    admitted_ns = verified_ns + wait * MS
    facts: list[Fact] = [
        KvSplitChosen(seq_id, at_ns, 100, 0, 0, Way.REMOTE, local_ms * MS, 0, 100 * MS, 0),
        SequenceQueued(seq_id, at_ns, 0, 100, 16, "", receives_kv=epoch),
        KvReserved(seq_id, at_ns, 0, epoch, 10, 0),
        KvSealed(seq_id, sealed_ns, epoch, 10, 1 << 20, remote),
        KvVerified(seq_id, verified_ns, epoch, 10, corrupt),
    ]
    if corrupt:
        return [
            *facts,
            KvLost(seq_id, verified_ns, 0, epoch, KvFault.CORRUPT),
            KvReleased(verified_ns, 0, epoch, 10),
        ]
    return [
        *facts,
        KvAdmitted(seq_id, verified_ns, 0, epoch),
        SequenceAdmitted(seq_id, admitted_ns, 0, 101, 0, 0, 0, 100),
    ]


def refused(seq_id: int, at_ms: int) -> list[Fact]:
    at_ns = at_ms * MS
    return [
        SequenceQueued(seq_id, at_ns, 0, 100, 16, "", receives_kv=seq_id),
        KvRefused(seq_id, at_ns, 0, seq_id, KvFault.NO_ROOM),
    ]


def lost(seq_id: int, at_ms: int, why: KvFault, after_ms: int, free_ms: int) -> list[Fact]:
    at_ns = at_ms * MS
    return [
        SequenceQueued(seq_id, at_ns, 0, 100, 16, "", receives_kv=seq_id),
        KvReserved(seq_id, at_ns, 0, seq_id, 10, 0),
        KvLost(seq_id, at_ns + after_ms * MS, 0, seq_id, why),
        KvReleased(at_ns + free_ms * MS, 0, seq_id, 10),
    ]


TROUBLES: dict[FleetSymptom, Make] = {
    S.PREFILL_BOUND: lambda n, at: transfer(n, at, queue=400),
    S.DECODE_BOUND: lambda n, at: transfer(n, at, wait=400),
    S.TRANSFER_SLOW: lambda n, at: transfer(n, at, exposed=200),
    S.SPLIT_NOT_WORTH_IT: lambda n, at: transfer(n, at, local_ms=30),
    S.KV_CORRUPT: lambda n, at: transfer(n, at, corrupt=1),
    S.STAGING_FULL: refused,
    S.TRANSFER_STALL: lambda n, at: lost(n, at, KvFault.LEASE, 3000, 3001),
    S.KV_STRANDED: lambda n, at: lost(n, at, KvFault.CANCELLED, 100, 6000),
}


def facts_of(trouble: Make) -> Iterator[Fact]:
    """Transfers twice a second; after CALM_S with the trouble."""
    found: list[Fact] = [replace(started(), at_ns=0, blocks_total=200)]
    for number, at_ms in enumerate(range(1000, (CALM_S + TROUBLE_S) * 1000, 500), 1):
        found += (transfer if at_ms < CALM_S * 1000 else trouble)(number, at_ms)
    return iter(sorted(found, key=lambda fact: fact.at_ns))  # type: ignore[union-attr]


def said(facts: Iterator[Fact]) -> list[FleetSymptom]:
    """What was named first, at each fact."""
    diagnoser, found = RoutedDiagnoser(), list[FleetSymptom]()
    for fact in facts:
        diagnoser.on_fact(fact)
        verdict = diagnoser.verdict
        if verdict is not None and verdict.faults:
            found.append(verdict.faults[0].symptom)
    return found


@pytest.mark.parametrize("symptom", TROUBLES)
def test_each_trouble_of_transfers_is_named_as_what_it_is(symptom: FleetSymptom) -> None:
    found = said(facts_of(TROUBLES[symptom]))

    assert found
    assert set(found) == {symptom}


def test_of_calm_transfers_nothing_is_said_and_of_routing_it_abstains() -> None:
    diagnoser = RoutedDiagnoser()
    for fact in facts_of(transfer):
        diagnoser.on_fact(fact)
    verdict = diagnoser.verdict

    assert verdict is not None
    assert verdict.faults == ()
    assert {one.symptom for one in verdict.abstained} == set(S) - set(TROUBLES)
    assert diagnoser.live == 0


def test_a_transfer_of_an_engine_that_has_ended_is_in_no_book() -> None:
    diagnoser = RoutedDiagnoser()
    for fact in [started(), *transfer(1, 10)[:3]]:
        diagnoser.on_fact(fact)
    assert diagnoser.live

    diagnoser.on_fact(replace(started(), at_ns=1_000 * MS))
    assert not diagnoser.live


def test_blocks_whose_release_was_lost_are_not_stranded_for_ever() -> None:
    facts: list[Fact] = [started(), *lost(1, 10, KvFault.CANCELLED, 100, 6000)[:-1]]
    gap: Fact = FactsLost(200 * MS, FactSource.ENGINE, 1)
    transfers, diagnoser = Transfers(), RoutedDiagnoser()
    for fact in facts:
        transfers.take(fact)
    transfers.end_tick(1_000 * MS)
    assert transfers.window().now.stranded_ns > 0
    transfers = Transfers()
    for fact in [*facts, gap]:
        transfers.take(fact)
        diagnoser.on_fact(fact)
    transfers.end_tick(1_000 * MS)

    assert transfers.window().now.stranded_ns == 0
    assert diagnoser.live == 0
