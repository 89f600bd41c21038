"""An attached engine that dies, hangs, or is not heard of any more."""

from __future__ import annotations

import pytest

from service.attach.sidecar.hub import WINDOW_NS, Hub
from service.attach.sidecar.streams import Counts, Stream
from service.attach.sidecar.watch import GONE_NS, POLL_NS, SILENT_NS, STUCK_NS, Watch
from service.attach.wire import Batch, Role
from telemetry.facts.engine_records import EngineStarted, SequenceQueued, SequencesListed
from telemetry.facts.reasons import EndReason, HangKind
from telemetry.facts.recorder import Lane
from telemetry.facts.records import (
    EngineDied,
    EngineHung,
    EngineRecovered,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestsListed,
)
from tests.attach.scripted_engine import hello, shifted, started
from tests.support.worlds.facts import accepted, queued, sequence_ended

BEGIN_NS = 10**12


class World:
    """An engine with a sequence, watched; `state` is the kernel's letter for every process."""

    def __init__(self, role: Role = Role.ENGINE_CORE) -> None:
        self.lane, self.state, self.now_ns = Lane(), "S", BEGIN_NS
        self.hub = Hub(self.lane, Counts(), lambda: False)
        self.watch = Watch(self.hub, lambda pid: self.state)
        self.stream = Stream(hello(role), 1000, BEGIN_NS, BEGIN_NS)
        facts = (
            [started(BEGIN_NS), shifted(queued(1, 0), BEGIN_NS)]
            if role is Role.ENGINE_CORE
            else [shifted(accepted("r1", 0), BEGIN_NS)]
        )
        self.hub.take(self.stream, Batch(facts), 0)
        self.pass_ns(WINDOW_NS)
        self.lane.drain()

    def pass_ns(self, ns: int, *, heard: bool = True, connected: bool = True) -> None:
        """Time passes, in looks."""
        until_ns = self.now_ns + ns
        while self.now_ns < until_ns:
            self.now_ns = min(until_ns, self.now_ns + POLL_NS)
            if heard:
                self.stream.heard_ns = self.now_ns
            self.hub.tick(self.now_ns)
            self.watch.look([self.stream] if connected else [], self.now_ns)

    def facts(self) -> list[Fact]:
        self.hub.flush()
        return self.lane.drain()


@pytest.mark.parametrize(("state", "kind"), [("S", HangKind.SILENT), ("T", HangKind.STOPPED)])
def test_an_engine_with_work_and_no_sign_of_life_hangs(state: str, kind: HangKind) -> None:
    """And works again at its next message."""
    world = World()
    world.state = state
    world.pass_ns(SILENT_NS - POLL_NS, heard=False)
    assert world.watch.health.hung_ns is None
    world.pass_ns(2 * POLL_NS, heard=False)
    assert world.watch.health.hung_ns is not None
    world.pass_ns(POLL_NS)
    hung, recovered = world.facts()
    assert isinstance(hung, EngineHung)
    assert (hung.kind, hung.sequences, hung.process_state) == (kind, 1, state)
    assert isinstance(recovered, EngineRecovered)
    assert world.watch.health.hung_ns is None


def test_an_engine_without_work_does_not_hang() -> None:
    world = World()
    world.hub.take(world.stream, Batch([shifted(sequence_ended(1, 300), BEGIN_NS)]), 0)
    world.pass_ns(1_000_000_000)
    world.lane.drain()
    world.pass_ns(2 * SILENT_NS, heard=False)
    assert world.facts() == []


def test_an_engine_that_was_idle_when_it_stopped_hangs_once_a_request_has_come() -> None:
    """It cannot say that it has the request: its front end does."""
    world = World()
    world.hub.take(world.stream, Batch([shifted(sequence_ended(1, 300), BEGIN_NS)]), 0)
    world.pass_ns(1_000_000_000)
    world.lane.drain()
    world.state = "T"
    world.pass_ns(2 * SILENT_NS, heard=False)
    assert world.watch.health.hung_ns is None

    front = Stream(hello(Role.FRONT_END), 1001, world.now_ns, world.now_ns)
    came_ms = (world.now_ns - BEGIN_NS) // 1_000_000
    world.hub.take(front, Batch([shifted(accepted("r1", came_ms), BEGIN_NS)]), 0)
    world.pass_ns(WINDOW_NS + POLL_NS, heard=False)

    hung = [fact for fact in world.facts() if isinstance(fact, EngineHung)]
    assert [(one.kind, one.sequences) for one in hung] == [(HangKind.STOPPED, 1)]


def test_an_engine_in_a_step_that_does_not_end_is_stuck() -> None:
    """Its thread that sends is alive."""
    world = World()
    world.stream.turn_ns = world.now_ns
    world.pass_ns(STUCK_NS + POLL_NS)
    (hung,) = world.facts()
    assert isinstance(hung, EngineHung)
    assert hung.kind is HangKind.STUCK


def test_an_engine_whose_loop_rests_is_not_stuck() -> None:
    """It is paused, or waits for its clients: it has sequences, and says no turn."""
    world = World()
    world.stream.turn_ns = world.now_ns
    world.pass_ns(POLL_NS)
    world.stream.turn_ns = None
    world.pass_ns(3 * STUCK_NS)
    assert world.facts() == []


def test_a_sidecar_that_did_not_run_itself_finds_nothing_stuck() -> None:
    """It was stopped, or what it reads first has waited for it: the engine's turns are old."""
    world = World()
    world.stream.turn_ns = world.now_ns
    world.pass_ns(POLL_NS)
    world.now_ns += 2 * STUCK_NS
    world.pass_ns(POLL_NS)
    world.stream.turn_ns += STUCK_NS
    world.pass_ns(POLL_NS)
    assert world.facts() == []
    assert world.watch.health.hangs == 0


def test_an_engine_that_ends_with_work_has_died() -> None:
    """What it had in flight fails."""
    world = World()
    world.watch.lost(world.stream, world.now_ns)
    world.state = "Z"
    world.pass_ns(POLL_NS, connected=False)
    died, ended = world.facts()
    assert isinstance(died, EngineDied)
    assert isinstance(ended, RequestEnded)
    assert ended.reason is EndReason.ENGINE_DIED


@pytest.mark.parametrize("is_core_first", [True, False])
def test_an_engine_that_hung_with_a_request_at_its_front_end_and_is_killed_has_died(
    is_core_first: bool,
) -> None:
    """Else the hang would never end; also where the front end is killed first, with its request."""
    world = World()
    world.hub.take(world.stream, Batch([shifted(sequence_ended(1, 300), BEGIN_NS)]), 0)
    world.pass_ns(1_000_000_000)
    front = Stream(hello(Role.FRONT_END, 2000), 1001, world.now_ns, world.now_ns)
    came_ms = (world.now_ns - BEGIN_NS) // 1_000_000
    world.hub.take(front, Batch([shifted(accepted("r1", came_ms), BEGIN_NS)]), 0)
    world.pass_ns(2 * SILENT_NS, heard=False)
    world.lane.drain()
    assert world.watch.health.hung_ns is not None

    for stream in (world.stream, front) if is_core_first else (front, world.stream):
        world.watch.lost(stream, world.now_ns)
    world.state = "Z"
    world.pass_ns(POLL_NS, connected=False)

    assert {type(fact) for fact in world.facts()} == {EngineDied, RequestEnded}


def test_an_engine_that_another_one_follows_has_died_before_that_begins() -> None:
    """What the next one has by then lives on."""
    world = World()
    world.watch.lost(world.stream, world.now_ns)
    begun_ns = world.now_ns + 1_000_000
    following = Stream(hello(pid=2000), 1001, begun_ns, begun_ns)
    facts = [started(begun_ns, 2000), shifted(queued(1, 1), begun_ns)]
    world.hub.take(following, Batch(facts), 0)
    world.now_ns += POLL_NS
    world.watch.look([following], world.now_ns)

    found = world.facts()
    kinds = [type(fact) for fact in found if not isinstance(fact, RequestAccepted | SequenceQueued)]
    assert kinds[:3] == [EngineDied, RequestEnded, EngineStarted]
    assert world.hub.sequences == {2}


def test_a_process_that_connects_again_goes_on() -> None:
    world = World()
    world.watch.lost(world.stream, world.now_ns)
    world.pass_ns(GONE_NS // 2, connected=False)
    world.pass_ns(2 * GONE_NS)
    assert world.facts() == []


def test_what_is_not_heard_of_any_more_is_lost_and_not_dead() -> None:
    """The process runs: its adapter may have turned itself off."""
    world = World()
    world.watch.lost(world.stream, world.now_ns)
    world.pass_ns(GONE_NS + POLL_NS, connected=False)
    listed, ended = world.facts()
    assert isinstance(listed, SequencesListed)
    assert isinstance(ended, RequestEnded)
    assert ended.reason is EndReason.END_LOST


@pytest.mark.parametrize("is_dead", [True, False])
def test_requests_of_a_front_end_that_is_gone_end(is_dead: bool) -> None:
    world = World(Role.FRONT_END)
    world.watch.lost(world.stream, world.now_ns)
    world.state = "Z" if is_dead else "S"
    world.pass_ns(GONE_NS + POLL_NS, connected=False)
    (found,) = world.facts()
    assert isinstance(found, RequestEnded if is_dead else RequestsListed)
    assert not world.hub.is_busy
