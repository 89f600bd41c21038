"""An attached engine as telemetry and the routes see it; and the task that keeps it going."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

import msgspec

from service.attach.sidecar.hub import Hub
from service.attach.sidecar.listener import Connections
from service.attach.sidecar.streams import Counts, Note, Stream
from service.attach.sidecar.watch import POLL_NS, Health, Watch
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact

log = logging.getLogger("phasescope.attach")

TICK_S = 0.05


class AttachedProcess(msgspec.Struct, frozen=True):
    """A connection, as `/debug/attach` shows it."""

    role: str
    engine: str
    engine_version: str
    adapter_version: str
    pid: int
    index: int
    facts: int
    lost_facts: int
    heard_ago_s: float


class AttachView(msgspec.Struct, frozen=True):
    """What is attached: processes, joins, and what was refused or turned off."""

    processes: list[AttachedProcess]
    connections: int
    refused: dict[str, int]
    joined: int
    core_only: int
    not_joined_in_time: int
    names_dropped: int
    facts_waiting: int
    unobserved: tuple[str, ...]
    turned_off: dict[str, int]
    notes: list[Note]


class AttachedEngine:
    """Everything behind the socket. It belongs to the event loop; properties may be read by any
    thread."""

    def __init__(self, clock: Clock) -> None:
        self.on_frame: Callable[[Sequence[Fact]], None] = lambda facts: None
        self.lane = Lane(source=FactSource.ENGINE)
        self.counts = Counts()
        self._clock = clock
        self._hub = Hub(self.lane, self.counts, lambda: self.connections.has_front_end)
        self._watch = Watch(self._hub)
        self.connections = Connections(self._hub, self._watch, self.counts, clock)
        self.connections.on_facts = lambda facts: self.on_frame(facts)
        self._next_look_ns = 0

    @property
    def ready(self) -> bool:
        return self.has_engine and self.health.hung_ns is None

    @property
    def has_engine(self) -> bool:
        return self.connections.core is not None and self._hub.started is not None

    @property
    def started(self) -> EngineStarted | None:
        return self._hub.started

    @property
    def health(self) -> Health:
        return self._watch.health

    @property
    def lost_facts(self) -> int:
        return self.connections.lost_facts

    @property
    def is_busy(self) -> bool:
        return self._hub.is_busy

    @property
    def model(self) -> str:
        """The served model; empty until an engine has said it."""
        return "" if self._hub.started is None else self._hub.started.model

    def view(self) -> AttachView:
        now_ns, counts = self._clock.now_ns(), self.counts
        started = self._hub.started
        return AttachView(
            processes=[_process(one, now_ns) for one in self.connections.streams],
            connections=counts.connections,
            refused={why.value: count for why, count in counts.refused.items()},
            joined=counts.joined,
            core_only=counts.core_only,
            not_joined_in_time=counts.late,
            names_dropped=counts.dropped_names,
            facts_waiting=self._hub.waiting,
            unobserved=() if started is None else started.unobserved,
            turned_off=dict(counts.turned_off),
            notes=list(counts.notes),
        )

    def tick(self) -> None:
        """Let facts go, and look after the processes."""
        now_ns = self._clock.now_ns()
        self._hub.tick(now_ns)
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + POLL_NS
            self._watch.look(self.connections.streams, now_ns)

    async def run(self, listener: socket.socket) -> None:
        """Accept connections until cancelled; then all facts go."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(self.connections.protocol, sock=listener)
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._tick_safely()
        finally:
            server.close()
            self._hub.flush()

    def _tick_safely(self) -> None:
        try:
            self.tick()
        except Exception:
            log.exception("the sidecar goes on after an error")


def _process(stream: Stream, now_ns: int) -> AttachedProcess:
    hello = stream.hello
    return AttachedProcess(
        role=hello.role.value,
        engine=hello.engine,
        engine_version=hello.engine_version,
        adapter_version=hello.adapter_version,
        pid=hello.pid,
        index=hello.index,
        facts=stream.facts,
        lost_facts=stream.lost_facts,
        heard_ago_s=round((now_ns - stream.heard_ns) / 1e9, 3),
    )
