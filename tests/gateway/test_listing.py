"""Live requests are listed when engine and gateway become idle, once a minute, and after a loss."""

from __future__ import annotations

import socket

from service.gateway.engine_client.live_requests import EVERY_NS, RequestLister
from service.process import frames
from service.process.gateway_connection import GatewayConnection
from service.process.live_sequences import SequenceLister
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import EngineIdled, SequencesListed
from telemetry.facts.framing import Unframer
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact, FactsLost, RequestsListed
from tests.support.worlds.facts import MS, queued, step

IDLED = EngineIdled(5 * MS, 0, 0, 0, 0, 10)


def test_the_engine_lists_its_live_sequences_when_it_goes_idle_and_once_a_minute() -> None:
    clock = ManualClock()
    lister = SequenceLister(clock)
    lister.note_submitted(7)
    lister.note_submitted(3)

    assert lister.due([step(0, 0, 5, [])], [7], after_gap=False) == []
    assert lister.due([IDLED], [7], after_gap=False) == [SequencesListed(0, (7,), 7)]
    clock.advance(EVERY_NS - 1)
    assert lister.due([], [7], after_gap=False) == []
    clock.advance(1)
    assert lister.due([], [7], after_gap=False) == [SequencesListed(EVERY_NS, (7,), 7)]
    assert lister.due([], [7], after_gap=False) == []
    assert len(lister.due([], [7], after_gap=True)) == 1


def test_the_gateway_lists_its_requests_when_the_last_has_gone_and_once_a_minute() -> None:
    clock, lane, live = ManualClock(), Lane(), {"a": None}
    lister = RequestLister(live, lane, clock)
    lister.tick()
    assert lane.drain() == []
    clock.advance(EVERY_NS)
    lister.tick()
    assert lane.drain() == [RequestsListed(EVERY_NS, ("a",))]
    live.clear()
    lane.append(queued())  # the last thing that was recorded of it
    lister.tick()
    lister.tick()
    assert lane.drain() == [queued(), RequestsListed(EVERY_NS, ())]


def test_a_list_of_an_earlier_moment_has_those_that_ended_since() -> None:
    """The other gateway processes were asked in between; their requests must not be taken for
    lost."""
    clock, lane = ManualClock(), Lane()
    lister = RequestLister({"a": None}, lane, clock)
    clock.advance(EVERY_NS + 5)
    lister.tick(EVERY_NS, ended=("b",))
    assert lane.drain() == [RequestsListed(EVERY_NS, ("a", "b"))]


def test_a_request_between_two_ticks_is_followed_by_a_list() -> None:
    clock, lane = ManualClock(), Lane()
    lister = RequestLister({}, lane, clock)
    lane.append(queued())
    lister.tick()
    assert lane.drain() == [queued(), RequestsListed(0, ())]


def test_a_gateway_that_lost_facts_lists_its_requests_as_soon_as_there_is_room() -> None:
    clock, lane = ManualClock(), Lane(1, FactSource.GATEWAY)
    lister = RequestLister({}, lane, clock)
    for at in (1, 2):
        lane.append(queued(at=at))
    lister.tick()  # no room for it
    assert lane.drain() == [queued(at=1), FactsLost(2 * MS, FactSource.GATEWAY, 2)]
    lister.tick()
    assert lane.drain() == [RequestsListed(0, ())]
    lister.tick()
    assert lane.drain() == []


def test_facts_that_the_engine_drops_are_reported_in_the_next_frame_that_has_room() -> None:
    """The gateway reads nothing until more than the backlog's limit waits for it."""
    mine, theirs = socket.socketpair()
    gateway = GatewayConnection(mine)
    text = "x" * (1 << 20)
    while not gateway.has_gap:
        gateway.send(frames.LoadProgress(text))
        gateway.send_frame(frames.Frame([], [queued(at=1)], 0))
    gateway.send_frame(frames.Frame([], [queued(at=2)], 0))
    assert not gateway.has_gap_to_report
    found = _read_until_reported(gateway, theirs)
    mine.close()
    theirs.close()

    reported = [fact for fact in found if isinstance(fact, FactsLost)]
    assert reported == [FactsLost(1 * MS, FactSource.ENGINE, 2)]
    assert found[-2:] == [*reported, queued(at=3)]


def _read_until_reported(gateway: GatewayConnection, theirs: socket.socket) -> list[Fact]:
    """All facts that come, up to those of a frame that is sent once the gap can be reported."""
    unframer, found, sent = Unframer(), [], False
    theirs.setblocking(False)
    while not (found and found[-1] == queued(at=3)):
        try:
            data = theirs.recv(1 << 20)
        except BlockingIOError:
            data = b""
        for payload in unframer.feed(data):
            message = frames.to_gateway_decoder.decode(payload)
            if isinstance(message, frames.Frame):
                found.extend(message.facts)
        gateway.receive(0)
        if gateway.has_gap_to_report and not sent:
            sent = True
            gateway.send_frame(frames.Frame([], [queued(at=3)], 0))
    return found
