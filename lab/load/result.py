"""The result of a bench: frozen, written as JSON; tables are made from it alone.

Two bases, so that no figure looks better than the service was:

* latencies, SLO and goodput of an open loop are over the requests *intended* in the window,
  whenever they ended and whether or not the client managed to send them in time;
* throughput, and goodput of a closed loop (where nothing is intended before a reply), are over
  what *arrived* or *ended* in the window.

The window opens after the warm-up and closes after the duration, or with the last reply when
the run is bounded by a number of requests.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

SCHEMA_VERSION = 1


class ErrorKind(StrEnum):
    """Why a request has no whole reply."""

    STATUS = "status"
    CONNECT = "connect"
    CLOSED = "closed"
    TIMEOUT = "timeout"
    STREAM = "stream"
    PROTOCOL = "protocol"
    EMPTY = "empty"
    CUT_SHORT = "cut_short"
    TOO_MANY_FILES = "too_many_files"
    UNFINISHED = "unfinished"


class CacheState(StrEnum):
    """What the server reports about reused prompt tokens."""

    OFF = "off"
    COLD = "cold"
    WARM = "warm"
    UNSAID = "unsaid"


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """One distribution; `hdr` is its whole histogram, in microseconds."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    hdr: str


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of lengths in tokens."""

    count: int
    mean: float
    min: int
    p50: int
    p99: int
    max: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second of the window."""

    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float


class ErrorCount(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that failed in the same way; `status` is of the reply, None without one."""

    kind: ErrorKind
    status: int | None
    count: int
    example: str


class ClassResult(msgspec.Struct, frozen=True, kw_only=True):
    """One class, or all together. Latencies are of whole replies; errors are counted beside.

    `offered_per_s` and `lateness` are None in a closed loop. `slo_attained` is the share of
    the counted requests that met every target of their class; one that failed met none.
    Without any target that is the share without an error. `gaps_together` counts gaps of less
    than a microsecond: chunks that arrived in one piece. `usage_missing` counts whole replies
    whose tokens had to be taken from their chunks.
    """

    name: str
    arrivals: str
    lengths: str
    slo: dict[str, float]
    counted: int
    ok: int
    slo_met: int
    slo_attained: float | None
    offered_per_s: float | None
    throughput: Rates
    goodput: Rates
    lateness: Latency | None
    ttft: Latency | None
    itl: Latency | None
    tpot: Latency | None
    e2e: Latency | None
    prompt_asked: Spread | None
    prompt_seen: Spread | None
    output_asked: Spread | None
    output_seen: Spread | None
    chunks: int
    chunk_tokens: int
    gaps_together: int
    usage_missing: int
    cache: CacheState
    cached_tokens: int | None
    cached_share: float | None
    errors: tuple[ErrorCount, ...]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the client ran."""

    cpu: str
    cores: int
    memory_gib: float | None
    python: str
    system: str


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own description: its answer to `/v1/models`, and its `server` header."""

    url: str
    model: str
    software: str
    models: Any


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `spec` is the one that was run, without key and header values.

    `partial` is true when the run was interrupted. `clipped` requests would have exceeded the
    model's context and were shortened.
    """

    schema_version: int = SCHEMA_VERSION
    partial: bool
    began_unix_s: int
    window_s: float
    warmup_requests: int
    warmup_errors: int
    clipped: int
    connections: int
    salt: int
    token_ids: tuple[int, int] | None
    total: ClassResult
    classes: tuple[ClassResult, ...]
    server: ServerInfo
    machine: Machine
    spec: dict[str, Any]

    @property
    def all_failed(self) -> bool:
        """Whether no counted request has a whole reply."""
        return self.total.ok == 0

    @property
    def is_short(self) -> bool:
        """A run bounded by time whose median request takes more than a fifth of the window."""
        e2e = self.total.e2e
        bounded = self.spec.get("duration_s") is not None
        return bounded and e2e is not None and e2e.p50_ms > 200 * self.window_s


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is, at least every two seconds."""

    elapsed_s: float
    sent: int
    ok: int
    failed: int
    in_flight: int
    chunks: int
    warming_up: bool
