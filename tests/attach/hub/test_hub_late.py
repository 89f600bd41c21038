"""What comes late: what waits for it, for how long, and what holds nothing up."""

from __future__ import annotations

from service.attach.sidecar.streams import Stream
from service.attach.wire import SequenceName
from telemetry.facts.engine_records import (
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    RequestAccepted,
    RequestEnded,
    SequenceSubmitted,
)
from tests.attach.hub.hub_world import JOIN, MEET, MS, WINDOW, World, idle_step, sent
from tests.attach.scripted_engine import hello, started
from tests.support.worlds.facts import (
    accepted,
    queued,
    request_ended,
    sequence_ended,
)


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


def test_a_short_pause_after_a_long_one_does_not_end_the_wait() -> None:
    """A process that has just come back may stand still once more before it reads."""
    world = World()
    world.at(WINDOW)
    begin, end = WINDOW + 100, 3 * JOIN
    world.of_core(queued(1, begin), names=[SequenceName(1, "a")])
    assert world.after_pause(end) == []
    assert world.after_pause(end + WINDOW + 100) == []
    world.of_front(accepted("r1", begin - 10), submitted=[sent("r1", begin - 1, "a")])
    kinds = [type(fact) for fact in world.at(end + 2 * WINDOW)]
    assert kinds == [RequestAccepted, SequenceSubmitted, SequenceQueued]


def test_a_sidecar_that_stands_still_again_and_again_lets_facts_go() -> None:
    world = World()
    world.of_core(queued(1, 5), idle_step(0, 10))
    pauses = [world.after_pause(at) for at in range(0, 3 * JOIN, WINDOW + 50)]

    kinds = [type(fact) for left in pauses for fact in left]
    assert kinds[-2:] == [SequenceQueued, StepRecorded]


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
