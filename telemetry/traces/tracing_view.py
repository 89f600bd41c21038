"""What tracing has done and cost so far: counted by the exporter, shown by snapshot,
`/debug/tracing` and `/metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from telemetry.traces.sampling import DEFAULT_RATE, Keep, Leave, SamplingPolicy, TracingMode


class Drop(StrEnum):
    """Why spans of a trace that was to be kept did not arrive.

    QUEUE_FULL: the receiver is slower than we are. EXPORT_FAILED: no answer, or "try again",
    until the chunk was given up. REJECTED: the receiver answered that it does not take them.
    SHUTDOWN: not delivered when the server had to end. BUILD_ERROR: our own fault; the tree
    was never built, so it counts as one span.
    """

    QUEUE_FULL = "queue_full"
    EXPORT_FAILED = "export_failed"
    REJECTED = "rejected_by_receiver"
    SHUTDOWN = "shutdown"
    BUILD_ERROR = "build_error"


@dataclass(slots=True)
class ExportStats:
    """Counters since the start.

    `attempts` are requests to the receiver, `attempts_failed` those that it did not take;
    `busy_ns` is CPU time of the exporter's thread; `last_lag_ns` is how old the oldest trace of
    the last delivered chunk was, counted from its request's end; `last_error` is one line.
    """

    traces_kept: Counter[Keep] = field(default_factory=Counter)
    traces_left: Counter[Leave] = field(default_factory=Counter)
    spans_exported: int = 0
    spans_dropped: Counter[Drop] = field(default_factory=Counter)
    attempts: int = 0
    attempts_failed: int = 0
    bytes_sent: int = 0
    busy_ns: int = 0
    last_export_ns: int | None = None
    last_lag_ns: int | None = None
    last_error: str | None = None


class TracingView(msgspec.Struct, frozen=True, kw_only=True):
    """Tracing at one moment, for people and programs. `target` None: spans go nowhere.

    `lag_ns` is the age of the oldest trace that is on its way, counted from its request's end;
    0 when none is. `last_export_ns` is a stamp of the monotonic clock.
    """

    mode: TracingMode = TracingMode.OFF
    rate: float = DEFAULT_RATE
    target: str | None = None
    traces_kept: dict[str, int] = {}
    traces_left: dict[str, int] = {}
    traces_queued: int = 0
    traces_held: int = 0
    spans_exported: int = 0
    spans_dropped: dict[str, int] = {}
    attempts: int = 0
    attempts_failed: int = 0
    bytes_sent: int = 0
    busy_ns: int = 0
    lag_ns: int = 0
    last_export_ns: int | None = None
    last_lag_ns: int | None = None
    last_error: str | None = None


def view_of(
    stats: ExportStats, policy: SamplingPolicy, target: str, queued: int, held: int, lag_ns: int
) -> TracingView:
    """Every reason is there, with 0 where nothing happened: absent would mean not counted."""
    return TracingView(
        mode=policy.mode,
        rate=policy.rate,
        target=target,
        traces_kept={reason.value: stats.traces_kept[reason] for reason in Keep},
        traces_left={reason.value: stats.traces_left[reason] for reason in Leave},
        traces_queued=queued,
        traces_held=held,
        spans_exported=stats.spans_exported,
        spans_dropped={reason.value: stats.spans_dropped[reason] for reason in Drop},
        attempts=stats.attempts,
        attempts_failed=stats.attempts_failed,
        bytes_sent=stats.bytes_sent,
        busy_ns=stats.busy_ns,
        lag_ns=lag_ns,
        last_export_ns=stats.last_export_ns,
        last_lag_ns=stats.last_lag_ns,
        last_error=stats.last_error,
    )
