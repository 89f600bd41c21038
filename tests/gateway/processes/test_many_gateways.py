"""The engine's end: tokens go to the process that asked, facts to the main one, commands come from
all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.engine.inbox import Cancel, Submit
from service.engine.plan import Emission, Sample, SamplingParams
from service.process import frames
from service.process.link import Link
from service.process.many_gateways import ManyGateways
from telemetry.facts.base import SPACE_BITS
from telemetry.facts.reasons import EndReason
from tests.support.worlds.facts import queued
from tests.support.worlds.metrics_world import engine_started

FIRST, SECOND = 1 << SPACE_BITS, 2 << SPACE_BITS


class World:
    """The engine's connection, the main process' end, and gateway processes by space."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        self.path = str(folder / "engine")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.engine = ManyGateways(theirs, self.listener)
        self.main, self._theirs = Link(ours), theirs
        self._links: list[Link] = []

    def close(self) -> None:
        for link in self._links:
            link.close()
        self.engine.receive(0)  # it sees their ends, and closes its own
        for end in (self.main, self._theirs, self.listener):
            end.close()

    def join(self, space: int) -> Link:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.path)
        link = Link(connection)
        self._links.append(link)
        link.send(frames.packed(frames.Join(space)))
        self.engine.receive(0)  # accepts it
        self.engine.receive(0)
        return link


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


def submit(seq_id: int) -> Submit:
    return Submit(seq_id=seq_id, prompt=[1], max_tokens=4, sampling=SamplingParams())


def frames_of(link: Link) -> list[frames.Frame]:
    found = [frames.to_gateway_decoder.decode(one) for one in link.receive()]
    assert all(isinstance(one, frames.Frame) for one in found)
    return [one for one in found if isinstance(one, frames.Frame)]


def test_tokens_go_to_the_process_that_asked_and_facts_to_the_main_one(world: World) -> None:
    first, second = world.join(1), world.join(2)
    mine = Emission(FIRST + 1, Sample(5), None)
    others = Emission(SECOND + 1, Sample(6), None)
    news, private = queued(FIRST + 1), engine_started()

    world.engine.send_frame(frames.Frame([], [private], 0))
    world.engine.send_frame(frames.Frame([mine, others], [news], 0))

    told = frames_of(world.main)
    assert [(one.emissions, one.facts) for one in told] == [([], [private]), ([], [news])]
    assert frames_of(first)[-1] == frames.Frame([mine], [news], 0, number=2)
    assert frames_of(second)[-1] == frames.Frame([others], [news], 0, number=2)


def test_a_process_that_joins_late_is_told_of_the_engine_that_runs(world: World) -> None:
    world.engine.send_frame(frames.Frame([], [engine_started()], 0))
    late = world.join(3)
    assert frames_of(late) == [frames.Frame([], [engine_started()], 0, number=1)]


def test_the_sequences_of_a_process_that_ends_are_cancelled(world: World) -> None:
    first = world.join(1)
    for seq_id in (FIRST + 1, FIRST + 2):
        first.send(frames.packed(submit(seq_id)))
    assert [one.seq_id for one in world.engine.receive(0) if isinstance(one, Submit)] == [
        FIRST + 1,
        FIRST + 2,
    ]
    world.engine.send_frame(frames.Frame([Emission(FIRST + 1, None, EndReason.EOS)], [], 0))

    first.close()
    assert world.engine.receive(0) == [Cancel(FIRST + 2, EndReason.DISCONNECT)]


@pytest.mark.parametrize("seq_id", [7, SECOND + 1])
def test_a_process_may_not_touch_the_sequences_of_others(world: World, seq_id: int) -> None:
    first = world.join(1)
    first.send(frames.packed(submit(FIRST + 1)))
    world.engine.receive(0)
    first.send(frames.packed(Cancel(seq_id, EndReason.DELETED)))

    assert world.engine.receive(0) == [Cancel(FIRST + 1, EndReason.DISCONNECT)]


def test_a_process_that_does_not_read_gets_its_tokens_later(world: World) -> None:
    first = world.join(1)
    sent = [Emission(FIRST + 1, Sample(9), None)] * 20_000
    for begin in range(0, len(sent), 100):
        world.engine.send_frame(frames.Frame(sent[begin : begin + 100], [], 0))
        world.main.receive()

    found: list[Emission] = []
    while len(found) < len(sent):
        found += [one for frame in frames_of(first) for one in frame.emissions]
        world.engine.receive(0)
    assert found == sent
