"""What the routes of any server of ours share: of one with an engine of its own, and of one that
observes an engine that others run. Passed in, never global.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.config.settings import GatewayConfig
from service.gateway.http.body_room import BodyMemoryBudget
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, RequestEnded
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.metrics.connections import ConnectionCounts
from telemetry.requests.timings import RequestTimings
from telemetry.stats.snapshot import Snapshot
from telemetry.traces.sampling import TracingMode

LAST_RESPONSES_S = 5
"""How long clients may take to read the last responses when the server stops."""


@dataclass(slots=True)
class Health:
    """Health of the running engine; any thread may read it.

    `hung_ns` is how long the engine has made no progress, None while it is healthy or there is no
    engine. `heartbeat_age_ns` is None when there is no engine. `hangs` counts the hangs since the
    gateway started. `given_up_pid` is the process id of the last engine that was killed and kept
    its sockets open, 0 if there was none.
    """

    hung_ns: int | None = None
    heartbeat_age_ns: int | None = None
    hangs: int = 0
    given_up_pid: int = 0


class EngineHealth(Protocol):
    """`Health`, as it is read."""

    @property
    def hung_ns(self) -> int | None: ...

    @property
    def heartbeat_age_ns(self) -> int | None: ...

    @property
    def hangs(self) -> int: ...


class ObservedEngine(Protocol):
    """What telemetry and the routes ask of an engine, whoever runs it."""

    on_frame: Callable[[Sequence[Fact]], None]
    """Called with the facts of each message that was read (the loop probe uses it)."""

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        ...

    @property
    def has_engine(self) -> bool:
        """Whether an engine has loaded and runs; it may be hung."""
        ...

    @property
    def started(self) -> EngineStarted | None:
        """The start of the last engine."""
        ...

    @property
    def health(self) -> EngineHealth: ...

    @property
    def lost_facts(self) -> int:
        """Facts that were dropped before they came here."""
        ...


class Views(Protocol):
    """The debug views, as bytes; the gateway does not know how they are made."""

    def current(self) -> Snapshot:
        """The current Snapshot."""
        ...

    def snapshot(self) -> bytes:
        """Its JSON."""
        ...

    def request(self, request_id: str) -> bytes | None:
        """JSON of a request's timeline; None when it is not stored."""
        ...

    def requests(self, since: int, most: int) -> bytes:
        """JSON of ended requests from number `since` on, one line each, and of those that are
        live."""
        ...

    def batch(self, rows: int) -> bytes:
        """JSON of the batch grid with up to so many rows."""
        ...

    def diagnosis(self) -> bytes:
        """JSON with the ranked findings."""
        ...

    def root(self) -> bytes:
        """JSON of the last root cause analysis."""
        ...

    def autopilot(self) -> bytes:
        """JSON of the autopilot: its state, its last decisions, its bounds."""
        ...

    def harm(self) -> bytes:
        """JSON of harm: time that requests took from others."""
        ...

    def host(self) -> bytes:
        """JSON of the machine: its last sample, and pauses with the requests that they delayed."""
        ...

    def roofline(self) -> bytes:
        """JSON of what steps read and compute against what the hardware can do."""
        ...

    def metrics(self, accept: str, full: bool) -> tuple[str, bytes]:
        """Content type and exposition for an Accept header; `full` splits latencies by all parts
        of the workload class."""
        ...

    def histograms(self, window: str) -> bytes | None:
        """JSON of all encoded histograms of a window; None for an unknown window."""
        ...

    def slo(self) -> bytes:
        """JSON of the SLO report."""
        ...

    def timings(self, ended: RequestEnded) -> RequestTimings | None:
        """The timings of a live request if it ended with `ended`; None when it is not known."""
        ...

    def tracing(self) -> bytes:
        """JSON of tracing: its settings, what it has exported and what that cost."""
        ...

    def set_tracing(self, mode: TracingMode | None, rate: float | None) -> bool:
        """Change mode and rate; None leaves one as it is. False when no spans are exported."""
        ...

    def is_recording(self) -> bool:
        """Whether facts are recorded."""
        ...

    def set_recording(self, enabled: bool) -> None:
        """Turn recording on or off."""
        ...


class LiveRequest(Protocol):
    """A request that is being served."""

    tenant: str

    def interrupt(self, reason: EndReason) -> None:
        """End the request from outside."""
        ...


async def _settled() -> None:
    """This process alone has requests."""


@dataclass(slots=True)
class Drain:
    """`active` is set when the server is told to stop; new requests are refused then. `on_begin` is
    called when it is. `settle` waits until the live requests of all processes are known here."""

    active: bool = False
    on_begin: Callable[[], None] = lambda: None
    settle: Callable[[], Awaitable[object]] = _settled

    def begin(self) -> None:
        self.active = True
        self.on_begin()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What a route may use. `not_ready_why` says why a server is not ready that is neither hung nor
    shutting down."""

    config: GatewayConfig
    clock: Clock
    engine: ObservedEngine
    views: Views
    live_request_ids: set[str]
    handlers: dict[str, LiveRequest] = field(default_factory=dict)
    drain: Drain = field(default_factory=Drain)
    recorder: FlightRecorder | None = None
    connections: ConnectionCounts = field(default_factory=ConnectionCounts)
    bodies: BodyMemoryBudget = field(default_factory=BodyMemoryBudget)
    not_ready_why: str = "the engine is loading or restarting"
