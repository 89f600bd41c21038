"""A hub with the connections of a core and of a front end, and a clock that is told."""

from __future__ import annotations

from collections.abc import Sequence

from service.attach.sidecar.hub import JOIN_NS, MEET_NS, WINDOW_NS, Hub
from service.attach.sidecar.streams import Counts, Stream
from service.attach.wire import Batch, Role, SequenceName, Submitted
from telemetry.facts.engine_records import (
    Row,
    StepRecorded,
)
from telemetry.facts.recorder import Lane
from telemetry.facts.records import (
    Fact,
)
from tests.attach.scripted_engine import hello
from tests.support.worlds.facts import (
    step,
)

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
