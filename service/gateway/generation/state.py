"""What the routes know: handed in once, frozen, no globals."""

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
from telemetry.requests.timings import RequestTimings
from telemetry.traces.sampling import TracingMode


class Views(Protocol):
    """The folds' answers, as bytes; the gateway does not know how they are made."""

    def snapshot(self) -> bytes:
        """JSON of the present Snapshot."""
        ...

    def request(self, request_id: str) -> bytes | None:
        """JSON of one request's timeline; None when it is not known (any more)."""
        ...

    def diagnosis(self) -> bytes:
        """JSON with the ranked findings."""
        ...

    def root(self) -> bytes:
        """JSON: what would have helped, as of the last time that something was wrong."""
        ...

    def harm(self) -> bytes:
        """JSON: whose work took others' time."""
        ...

    def host(self) -> bytes:
        """JSON of the machine: its last sample, and pauses with whose latency they cost."""
        ...

    def roofline(self) -> bytes:
        """JSON of what steps read and compute against what the hardware can do."""
        ...

    def metrics(self, accept: str, full: bool) -> tuple[str, bytes]:
        """Content type and exposition, as an Accept header wants it; `full` splits latencies by
        all parts of the workload class."""
        ...

    def histograms(self, window: str) -> bytes | None:
        """JSON of all histograms over a window, encoded; None for an unknown window."""
        ...

    def slo(self) -> bytes:
        """JSON of the SLO report."""
        ...

    def timings(self, ended: RequestEnded) -> RequestTimings | None:
        """The times of a live request, were `ended` its end; None when it is not known."""
        ...

    def tracing(self) -> bytes:
        """JSON of what tracing does, has done and has cost."""
        ...

    def set_tracing(self, mode: TracingMode | None, rate: float | None) -> bool:
        """Change either; None leaves it. False when spans go nowhere, so that nothing can be
        changed."""
        ...

    def is_recording(self) -> bool:
        """Whether folds are fed."""
        ...

    def set_recording(self, enabled: bool) -> None:
        """Feed the folds, or do not."""
        ...


class Live(Protocol):
    """A request that is being served."""

    tenant: str

    def interrupt(self, reason: EndReason) -> None:
        """End it from outside."""
        ...


@dataclass(slots=True)
class Drain:
    """Turns active once, when the server is told to stop: no new work from then on."""

    active: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """Everything that a route may use."""

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
    exchanges: dict[str, Live] = field(default_factory=dict)
    drain: Drain = field(default_factory=Drain)
    recorder: FlightRecorder | None = None
    connections: ConnectionCounts = field(default_factory=ConnectionCounts)
