"""What all routes and requests share; passed in, never global."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from service.config.settings import GatewayConfig, SamplingDefaults
from service.gateway.engine_client.client import EngineClient
from service.gateway.ingest.pool import IngestPool
from service.text.tokenizer import Tokenizer
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import RequestEnded
from telemetry.facts.stages import StartReport
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.metrics.connections import ConnectionCounts
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from telemetry.requests.timings import RequestTimings
from telemetry.traces.sampling import TracingMode


class Views(Protocol):
    """The debug views, as bytes; the gateway does not know how they are made."""

    def snapshot(self) -> bytes:
        """JSON of the current Snapshot."""
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


@dataclass(slots=True)
class Drain:
    """`active` is set when the server is told to stop; new requests are refused then."""

    active: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """What a route may use."""

    config: GatewayConfig
    clock: Clock
    lane: Lane
    engine: EngineClient
    tokenizer: Tokenizer
    ingest: IngestPool
    model: str
    sampling_defaults: SamplingDefaults
    created_unix_s: int
    views: Views
    retry_after_s: Callable[[], int]
    start_report: Callable[[], StartReport | None]
    live_request_ids: set[str]
    handlers: dict[str, LiveRequest] = field(default_factory=dict)
    drain: Drain = field(default_factory=Drain)
    recorder: FlightRecorder | None = None
    connections: ConnectionCounts = field(default_factory=ConnectionCounts)
    slo: SloPolicy = DEFAULT_POLICY
