"""Facts of the engine and of gateway processes are recorded after their causes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from service.gateway.processes import messages
from service.gateway.processes.intake import PATIENCE_NS, EngineLane, Intake
from service.gateway.processes.peer import Peer
from service.gateway.processes.shared_count import SharedCount
from service.gateway.processes.silence import (
    LOOK_NS,
    SILENT_NS,
    START_NS,
    SilenceWatch,
    is_overdue,
)
from service.process.heartbeat import shared_file
from service.process.link import Link
from telemetry.facts.clock import ManualClock
from telemetry.facts.records import Fact
from telemetry.metrics.connections import ConnectionCounts
from telemetry.metrics.ingest_counts import IngestCounts
from tests.support.worlds.facts import accepted, queued

ENGINE_PID = 77


def test_a_process_that_hangs_is_overdue_in_its_start_too() -> None:
    assert is_overdue(True, SILENT_NS + 1)
    assert not is_overdue(True, SILENT_NS)
    assert is_overdue(False, START_NS + 1)
    assert not is_overdue(False, SILENT_NS + 1)


class World:
    """One gateway process' end of the link, and the main process' intake."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        number = shared_file("test")
        self.count = SharedCount(number, creates=True)
        process = subprocess.Popen([sys.executable, "-c", ""])
        self.peer = Peer(0, 1, ours, SharedCount(number), process)
        os.close(number)
        self.link = Link(theirs)
        self.frames = 0
        self.taken: list[Fact] = []
        self.lost = False
        self.clock = ManualClock()
        self.intake = Intake(lambda: (ENGINE_PID, self.frames), self._handle, self._on_lost)

    def _handle(self, peer: Peer, message: messages.ToMain) -> None:
        assert isinstance(message, messages.Facts)
        peer.received += len(message.facts)
        self.taken += message.facts

    def _on_lost(self, peer: Peer) -> None:
        self.lost = True

    def send(self, facts: list[Fact], after_frame: int = 0, pid: int = ENGINE_PID) -> None:
        counts = ConnectionCounts(), IngestCounts()
        self.link.send(messages.packed(messages.Facts(facts, 0, pid, after_frame, *counts)))


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.link.close()
    found.peer.close()
    found.peer.process.wait()


def test_facts_wait_for_the_frames_that_their_process_had_seen(world: World) -> None:
    world.send([accepted("a")])
    world.send([accepted("b")], after_frame=2)
    world.send([accepted("c")])

    world.intake.read(world.peer)
    assert world.taken == [accepted("a")]
    world.frames = 1
    world.intake.take(world.peer)
    assert world.taken == [accepted("a")]
    world.frames = 2
    world.intake.take(world.peer)
    assert world.taken == [accepted("a"), accepted("b"), accepted("c")]


def test_facts_do_not_wait_for_frames_of_an_engine_that_has_ended(world: World) -> None:
    world.send([accepted("a")], after_frame=90, pid=ENGINE_PID - 1)
    world.intake.read(world.peer)
    assert world.taken == [accepted("a")]


def test_what_a_process_had_sent_before_its_end_is_taken(world: World) -> None:
    world.send([accepted("a")], after_frame=3)
    world.link.close()
    world.intake.read(world.peer)
    assert (world.taken, world.lost) == ([accepted("a")], True)


def test_bytes_that_are_no_message_end_the_process_link(world: World) -> None:
    world.link.send(b"\xc1")
    world.intake.read(world.peer)
    assert world.lost


def test_the_engines_facts_wait_for_facts_that_are_on_their_way(world: World) -> None:
    """The process has more facts than its socket took: its count says so."""
    lane = EngineLane(world.clock)
    lane.causes_missing = lambda: world.peer.missing
    world.count.set(1)

    lane.append(queued())
    assert lane.drain() == []
    world.send([accepted("a")])
    world.intake.read(world.peer)
    lane.release()
    assert lane.drain() == [queued()]
    assert lane.released_early == 0


def test_a_stopped_process_does_not_stop_the_engines_facts(world: World) -> None:
    lane = EngineLane(world.clock)
    lane.causes_missing = lambda: world.peer.missing
    world.count.set(1)

    lane.append(queued())
    world.clock.advance(PATIENCE_NS)
    lane.release()
    assert lane.drain() == [queued()]
    assert lane.released_early == 1


def overdue(world: World, watch: SilenceWatch, looks: int, every_ns: int = LOOK_NS) -> int:
    """How often the process is found to hang."""
    found = 0
    for _ in range(looks):
        world.clock.advance(every_ns)
        found += len(watch.overdue([world.peer]))
    return found


def test_a_pause_of_the_main_process_is_no_hang_of_the_others(world: World) -> None:
    """Neither of one that has sent meanwhile, nor of one that was paused too."""
    world.peer.is_ready = True
    watch = SilenceWatch(world.clock, world.intake.read_all)
    assert overdue(world, watch, 1, 60 * SILENT_NS) == 0
    for _ in range(2 * SILENT_NS // LOOK_NS):
        world.send([])
        assert overdue(world, watch, 1, 60 * SILENT_NS) == 0


def test_a_process_that_sends_nothing_while_it_is_looked_at_hangs(world: World) -> None:
    world.peer.is_ready = True
    watch = SilenceWatch(world.clock, world.intake.read_all)
    looks = SILENT_NS // LOOK_NS
    assert overdue(world, watch, looks) == 0
    assert overdue(world, watch, looks) == 1
