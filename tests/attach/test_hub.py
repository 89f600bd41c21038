"""Facts of an engine's processes become one stream: joined, in order, renumbered."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.attach.sidecar.hub import JOIN_NS, MEET_NS, WINDOW_NS, Hub
from service.attach.sidecar.streams import Counts, Stream
from service.attach.wire import Batch, Role, SequenceName, Submitted
from telemetry.facts.engine_records import (
    Row,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, FactSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import (
    UNKNOWN_ROUTE,
    EngineDied,
    Fact,
    FactsLost,
    RequestAccepted,
    RequestEnded,
    RequestsListed,
    SequenceSubmitted,
    fact_ns,
)
from tests.attach.scripted_engine import hello, started, streams_of
from tests.support.worlds.facts import (
    accepted,
    decode,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
)
from tests.support.worlds.ledger_world import run_fold, world_facts

MS = 1_000_000


class World:
    """A hub with a core and a front end; `facts` are those that have left it."""

    def __init__(self, has_front: bool = True) -> None:
        self.counts, self.lane = Counts(), Lane()
        self.has_front = has_front
        self.ticked_ms = 0.0
        self.hub = Hub(self.lane, self.counts, lambda: self.has_front)
        self.core = Stream(hello(), None, 0, 0)
        self.front = Stream(hello(Role.FRONT_END, 2000), None, 0, 0)

    def of_core(self, *facts: Fact, names: Sequence[SequenceName] = (), lost: int = 0) -> None:
        self.hub.take(self.core, Batch(list(facts), list(names)), lost)

    def of_front(self, *facts: Fact, submitted: Sequence[Submitted] = ()) -> None:
        self.hub.take(self.front, Batch(list(facts), [], list(submitted)), 0)

    def at(self, now_ms: float) -> list[Fact]:
        """What has left until then, with a tick every 50 ms."""
        first_ms, self.ticked_ms = self.ticked_ms, now_ms
        for tick_ms in range(int(first_ms) + 50, int(now_ms), 50):
            self.hub.tick(tick_ms * MS)
        return self.after_pause(now_ms)

    def after_pause(self, now_ms: float) -> list[Fact]:
        """What has left, with one tick then and none before."""
        self.ticked_ms = now_ms
        self.hub.tick(round(now_ms * MS))
        return self.lane.drain()


WINDOW, JOIN, MEET = WINDOW_NS // MS, JOIN_NS // MS, MEET_NS // MS


def sent(request_id: str, at: int, name: str) -> Submitted:
    return Submitted(request_id, at * MS, name, 0)


def idle_step(step_id: int, end: int, *rows: Row) -> StepRecorded:
    return step(step_id, end - 5, end, list(rows))


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


def test_a_fact_leaves_when_it_is_as_old_as_the_window() -> None:
    """Later facts of other processes may still come before it."""
    world = World()
    world.of_core(idle_step(0, 100))
    assert world.at(100 + WINDOW - 1) == []
    assert world.at(100 + WINDOW) == [idle_step(0, 100)]


def test_a_sequence_waits_for_its_request_and_holds_later_facts_back() -> None:
    """A front end that is busy sends late."""
    world = World()
    world.of_core(queued(1, 20), idle_step(0, 30), names=[SequenceName(1, "a")])
    assert world.at(JOIN) == []

    world.of_front(accepted("r1", 5), submitted=[sent("r1", 10, "a")])
    kinds = [type(fact) for fact in world.at(JOIN)]
    assert kinds == [RequestAccepted, SequenceSubmitted, SequenceQueued, StepRecorded]


def test_the_end_of_a_request_waits_for_the_name_of_its_sequence() -> None:
    """A client that goes away during a long step: the core names the sequence after that step, and
    the request's account has the time that the core held it."""
    world = World()
    world.of_core(started())
    world.at(WINDOW)
    world.of_front(
        accepted("r1", 5),
        request_ended("r1", 80, reason=EndReason.DISCONNECT),
        submitted=[sent("r1", 10, "a")],
    )
    assert [type(fact) for fact in world.at(80 + WINDOW)] == [RequestAccepted]

    late = 80 + 2 * WINDOW
    world.of_core(queued(1, late - 50), names=[SequenceName(1, "a")])
    kinds = [type(fact) for fact in world.at(late + WINDOW)]
    assert kinds == [SequenceSubmitted, RequestEnded, SequenceQueued]


def test_where_no_name_came_in_time_the_next_end_does_not_wait() -> None:
    """A core that names nothing does not delay every end."""
    world = World()
    world.of_core(started())
    world.at(WINDOW)
    world.of_front(accepted("r1", 5), request_ended("r1", 10), submitted=[sent("r1", 6, "a")])
    assert [type(fact) for fact in world.at(JOIN)] == [RequestAccepted]
    assert [type(fact) for fact in world.at(10 + JOIN)] == [RequestEnded]
    world.of_front(
        accepted("r2", JOIN), request_ended("r2", JOIN + 5), submitted=[sent("r2", JOIN, "b")]
    )
    assert len(world.at(JOIN + 5 + WINDOW)) == 2


def test_where_no_request_came_in_time_the_next_is_not_waited_for() -> None:
    """Sequences that come from elsewhere do not delay everything again and again."""
    world = World()
    world.of_core(queued(1, 0), names=[SequenceName(1, "a")])
    assert world.at(JOIN - 1) == []
    assert world.at(JOIN)
    world.of_core(queued(2, JOIN), names=[SequenceName(2, "b")])
    assert world.at(JOIN + WINDOW)
    assert world.counts.late == 2


def test_time_in_which_the_sidecar_stood_still_is_no_time_to_be_late_in() -> None:
    """Its processes wrote all the while; what is read first after a pause waits for the rest."""
    world = World()
    world.at(WINDOW)
    begin, end = WINDOW + 100, 3 * JOIN  # stands still until the end
    world.of_core(queued(1, begin), sequence_ended(1, begin + 900), names=[SequenceName(1, "a")])
    assert world.after_pause(end) == []
    world.of_front(
        accepted("r1", begin - 10), request_ended("r1", begin + 1000),
        submitted=[sent("r1", begin - 1, "a")],
    )  # fmt: skip
    assert [type(fact) for fact in world.at(end + WINDOW)] == [
        RequestAccepted, SequenceSubmitted, SequenceQueued, SequenceEnded, RequestEnded,
    ]  # fmt: skip


def test_a_sidecar_that_stands_still_again_and_again_lets_facts_go() -> None:
    world = World()
    world.of_core(queued(1, 5), idle_step(0, 10))
    pauses = [world.after_pause(at) for at in range(0, 3 * JOIN, WINDOW + 50)]

    kinds = [type(fact) for left in pauses for fact in left]
    assert kinds[-2:] == [SequenceQueued, StepRecorded]


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


def test_a_request_that_comes_too_late_does_not_take_a_sequence_that_has_one() -> None:
    world = World(has_front=False)
    world.of_core(started(), queued(1, 20), names=[SequenceName(1, "a")])
    found = world.at(WINDOW + 20)
    world.has_front = True
    world.of_front(accepted("r1", 5), submitted=[sent("r1", 10, "a")])
    world.of_core(sequence_ended(1, 400))
    found += world.at(WINDOW + 400)

    owners = [fact.request_id for fact in found if isinstance(fact, SequenceSubmitted)]
    assert owners == ["a"]
    assert world.counts.joined == 0


def test_a_core_that_has_run_before_waits_for_its_front_ends() -> None:
    """After a restart of the sidecar each process connects in its own time."""
    connected = 60_000
    world = World(has_front=False)
    world.core = Stream(hello(), None, connected * MS, connected * MS)
    queued_at = connected - 4_000  # it waited in the adapter
    world.of_core(started(), queued(1, queued_at), names=[SequenceName(1, "a")])
    assert [type(fact).__name__ for fact in world.at(connected + WINDOW)] == ["EngineStarted"]

    world.has_front = True
    early = queued_at - 10
    world.of_front(accepted("r1", early), submitted=[sent("r1", early + 5, "a")])
    kinds = [type(fact) for fact in world.at(connected + 2 * WINDOW)]
    assert kinds == [RequestAccepted, SequenceSubmitted, SequenceQueued]


def test_a_core_that_has_run_before_does_not_wait_for_ever() -> None:
    connected = 60_000
    world = World(has_front=False)
    world.core = Stream(hello(), None, connected * MS, connected * MS)
    world.of_core(started(), queued(1, connected - 10), names=[SequenceName(1, "a")])
    world.at(connected + MEET - 1)
    assert world.hub.waiting == 1
    assert world.at(connected + MEET)
    assert world.counts.core_only == 1


def test_beside_a_core_that_is_not_observed_no_end_waits_for_a_name() -> None:
    """It has some of the sequences."""
    world = World()
    world.of_core(started())
    world.at(WINDOW)
    world.hub.has_other_cores = True
    world.of_front(accepted("r1", 5), request_ended("r1", 10), submitted=[sent("r1", 6, "a")])
    kinds = [type(fact) for fact in world.at(10 + WINDOW)]
    assert kinds == [RequestAccepted, RequestEnded]


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
