"""Facts of an engine's processes become one stream: joined, in order, renumbered."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.attach.sidecar.streams import Stream
from service.attach.wire import Batch, Role, SequenceName
from telemetry.facts.engine_records import (
    SequenceQueued,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, FactSource
from telemetry.facts.records import (
    UNKNOWN_ROUTE,
    EngineDied,
    FactsLost,
    RequestAccepted,
    RequestEnded,
    RequestsListed,
    fact_ns,
)
from tests.attach.hub.hub_world import MS, WINDOW, World, idle_step, sent
from tests.attach.scripted_engine import hello, started, streams_of
from tests.support.worlds.facts import (
    accepted,
    decode,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    submitted,
)
from tests.support.worlds.ledger_world import run_fold, world_facts


@pytest.mark.parametrize("is_core_first", [True, False])
def test_names_and_requests_meet_in_either_order(is_core_first: bool) -> None:
    """The sequence is submitted at the front end's stamp, whoever's message comes first."""
    world = World()

    def core() -> None:
        world.of_core(queued(1, 20), names=[SequenceName(1, "a")])

    def front() -> None:
        world.of_front(accepted("r1", 5), submitted=[sent("r1", 10, "a")])

    for say in (core, front) if is_core_first else (front, core):
        say()

    found = world.at(20 + WINDOW)
    assert found == [accepted("r1", 5), submitted("r1", 10, 1), queued(1, 20)]
    assert (world.counts.joined, world.counts.core_only) == (1, 0)


def test_without_a_front_end_the_core_makes_the_request() -> None:
    """It begins when the core received it, ends with its sequence, and its route is unknown."""
    world = World(has_front=False)
    world.of_core(started(), queued(1, 20), names=[SequenceName(1, "cmpl a/b")])
    world.of_core(sequence_ended(1, 50))
    found = world.at(WINDOW + 50)

    first, last = found[1], found[-1]
    assert isinstance(first, RequestAccepted)
    assert (first.request_id, first.route, first.at_ns) == ("cmpl-a-b", UNKNOWN_ROUTE, 20 * MS)
    assert isinstance(last, RequestEnded)
    assert (last.request_id, last.at_ns, last.status) == ("cmpl-a-b", 50 * MS, 0)
    assert not world.hub.is_busy


def test_requests_of_the_core_alone_have_exact_accounts() -> None:
    """Their parts sum to their time, to the nanosecond."""
    world = World(has_front=False)
    world.of_core(
        started(), queued(1, 20), idle_step(0, 30, prefill()),
        idle_step(1, 90, decode()), sequence_ended(1, 91),
        names=[SequenceName(1, "a")],
    )  # fmt: skip
    timelines, _ = run_fold(world.at(10 * WINDOW))
    assert [timeline.account.ledger.residue_ns for timeline in timelines] == [0]


def test_an_engine_that_starts_again_gets_new_numbers() -> None:
    """The second engine begins with sequence 1 too."""
    world = World(has_front=False)
    world.of_core(started(1), queued(7, 20), sequence_ended(7, 30))
    world.core = Stream(hello(pid=3000), None, 0, 0)
    world.of_core(started(50), queued(1, 60), idle_step(0, 70, prefill(1)))
    found = world.at(WINDOW + 100)
    ids = [fact.seq_id for fact in found if isinstance(fact, SequenceQueued)]
    steps = [fact.rows[0].seq_id for fact in found if isinstance(fact, StepRecorded)]
    assert (ids, steps) == ([7, 8], [8])


def test_the_same_engine_goes_on_after_a_reconnect() -> None:
    """Every connection begins with EngineStarted; only the first one counts."""
    world = World(has_front=False)
    world.of_core(started(1), queued(1, 20))
    world.core = Stream(hello(), None, 0, 0)
    world.of_core(started(1), SequencesListed(30 * MS, (1,), 1), names=[SequenceName(1, "a")])
    world.of_core(sequence_ended(1, 40))
    found = world.at(WINDOW + 40)
    assert [type(fact).__name__ for fact in found].count("EngineStarted") == 1
    assert sequence_ended(1, 40) in found


def test_a_list_of_one_front_end_keeps_the_requests_of_the_others() -> None:
    world = World()
    world.of_front(accepted("r1", 5), accepted("r2", 6))
    other = Stream(hello(Role.FRONT_END, 2001, 1), None, 0, 0)
    world.hub.take(other, Batch([accepted("r3", 7)]), 0)
    world.of_front(RequestsListed(10 * MS, ("r2",)))
    listed = world.at(WINDOW + 10)[-1]
    assert listed == RequestsListed(10 * MS, ("r2", "r3"))


def test_what_a_dead_engine_had_ends() -> None:
    """Requests of the core alone fail with it; nothing is live any more."""
    world = World(has_front=False)
    world.of_core(started(), queued(1, 20))
    world.at(WINDOW + 20)
    world.hub.engine_died(30 * MS, "gone")
    died, ended = world.at(WINDOW + 30)
    assert isinstance(died, EngineDied)
    assert isinstance(ended, RequestEnded)
    assert ended.reason is EndReason.ENGINE_DIED
    assert not world.hub.is_busy


def test_a_front_end_that_ends_fails_its_requests() -> None:
    world = World()
    world.of_front(accepted("r1", 5))
    world.at(WINDOW + 5)
    world.hub.front_end_died(world.front.who, 10 * MS)
    (ended,) = world.at(WINDOW + 10)
    assert isinstance(ended, RequestEnded)
    assert ended.reason is EndReason.ENGINE_DIED


@pytest.mark.parametrize("is_dead", [True, False])
def test_what_a_front_end_had_sent_just_before_it_ended_ends_too(is_dead: bool) -> None:
    """Its last facts still wait for their turn then."""
    world = World()
    world.of_front(accepted("r1", 5))
    if is_dead:
        world.hub.front_end_died(world.front.who, 10 * MS)
    else:
        world.hub.unobserved(world.front, 10 * MS)

    kinds = [type(fact) for fact in world.at(WINDOW + 10)]

    assert kinds == [RequestAccepted, RequestEnded if is_dead else RequestsListed]
    assert not world.hub.is_busy


def test_an_engine_that_dies_with_its_first_sequence_has_died() -> None:
    """One that dies without any has only ended."""
    world = World(has_front=False)
    world.hub.engine_died(4 * MS, "gone")
    assert world.at(WINDOW + 4) == []

    world.of_core(started(), queued(1, 20))
    world.hub.engine_died(30 * MS, "gone")

    died = [fact for fact in world.at(WINDOW + 30) if isinstance(fact, EngineDied)]
    assert [one.restart for one in died] == [1]
    assert not world.hub.is_busy


def test_one_sequence_that_is_named_twice_is_joined_by_either_name() -> None:
    world = World()
    world.of_core(queued(1, 20), names=[SequenceName(1, "a"), SequenceName(1, "b")])
    world.of_front(accepted("r1", 5), submitted=[sent("r1", 10, "b"), sent("r1", 11, "a")])
    found = world.at(20 + WINDOW)
    assert submitted("r1", 10, 1) in found
    assert queued(1, 20) in found


def test_facts_that_an_adapter_dropped_are_a_gap() -> None:
    world = World()
    world.of_core(idle_step(0, 100), lost=3)
    assert world.at(WINDOW + 100)[0] == FactsLost(100 * MS, FactSource.ENGINE, 3)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_streams_of_two_processes_give_the_facts_of_one(seed: int) -> None:
    """Cut into the messages of two processes, delivered late and in turns, a run comes out as it
    was, and every account is exact."""
    random = Random(seed)
    facts = world_facts("poisson", seed % 7)
    world = World()
    world.of_core(started(-1))
    for one in streams_of(facts, random):
        world.hub.tick(one.at_ns)
        stream = world.core if one.role is Role.ENGINE_CORE else world.front
        world.hub.take(stream, one.batch, 0)
    world.hub.flush()
    found = world.lane.drain()[1:]

    assert [fact_ns(one) for one in found] == sorted(fact_ns(one) for one in facts)
    assert world.counts.core_only == 0
    timelines, _ = run_fold(found)
    expected, _ = run_fold(facts)
    assert len(timelines) == len(expected)
    assert {one.account.ledger.residue_ns for one in timelines} == {0}


def test_a_request_that_ends_before_the_core_has_it_needs_no_sequence() -> None:
    world = World()
    world.of_front(accepted("r1", 5), request_ended("r1", 9))
    assert world.at(WINDOW + 9) == [accepted("r1", 5), request_ended("r1", 9)]
    assert not world.hub.is_busy
