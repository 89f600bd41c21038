"""Counters of tracing: kept by the exporter, shown by the snapshot, `/debug/tracing` and
`/metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from telemetry.traces.sampling import (
    DEFAULT_RATE,
    NotSampledReason,
    SampledReason,
    SamplingPolicy,
    TracingMode,
)


class DropReason(StrEnum):
    """Why spans of a sampled trace were not delivered.

    QUEUE_FULL: the receiver is slower than the server. EXPORT_FAILED: no answer, or an answer that
    asks for a retry, until the chunk was given up. REJECTED: the receiver refused them. SHUTDOWN:
    not delivered when the server ended. BUILD_ERROR: the spans could not be built, a bug; the tree
    counts as one span.
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

    traces_kept: Counter[SampledReason] = field(default_factory=Counter)
    traces_not_sampled: Counter[NotSampledReason] = field(default_factory=Counter)
    spans_exported: int = 0
    spans_dropped: Counter[DropReason] = field(default_factory=Counter)
    attempts: int = 0
    attempts_failed: int = 0
    bytes_sent: int = 0
    busy_ns: int = 0
    last_export_ns: int | None = None
    last_lag_ns: int | None = None
    last_error: str | None = None


class TracingView(msgspec.Struct, frozen=True, kw_only=True):
    """Tracing at one moment. `target` is the receiver, None without one.

    `traces_left` are the traces that were not sampled, by reason; `traces_held` wait to see whether
    they become culprits. `lag_ns` is the age of the oldest trace that is queued or in flight, from
    the end of its request; 0 when there is none. `last_export_ns` is a monotonic stamp.
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
    stats: ExportStats, policy: SamplingPolicy, target: str, queued: int, deferred: int, lag_ns: int
) -> TracingView:
    """The view of `stats`. Every reason is present: 0 means that nothing happened, absent would
    mean not counted."""
    return TracingView(
        mode=policy.mode,
        rate=policy.rate,
        target=target,
        traces_kept={reason.value: stats.traces_kept[reason] for reason in SampledReason},
        traces_left={reason.value: stats.traces_not_sampled[reason] for reason in NotSampledReason},
        traces_queued=queued,
        traces_held=deferred,
        spans_exported=stats.spans_exported,
        spans_dropped={reason.value: stats.spans_dropped[reason] for reason in DropReason},
        attempts=stats.attempts,
        attempts_failed=stats.attempts_failed,
        bytes_sent=stats.bytes_sent,
        busy_ns=stats.busy_ns,
        lag_ns=lag_ns,
        last_export_ns=stats.last_export_ns,
        last_lag_ns=stats.last_lag_ns,
        last_error=stats.last_error,
    )
