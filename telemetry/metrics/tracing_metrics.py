"""Tracing's own metrics: what it kept, what it lost, what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from telemetry.metrics import catalog
from telemetry.metrics.metric import Metric
from telemetry.traces.sampling import TracingMode
from telemetry.traces.tracing_view import TracingView

Sample = tuple[Mapping[str, str], float]


def tracing_samples(view: TracingView) -> Iterable[tuple[Metric, list[Sample]]]:
    """The view as samples of the catalog's metrics."""
    yield (
        catalog.TRACING_MODE,
        [({"mode": mode.value}, float(mode is view.mode)) for mode in TracingMode],
    )
    yield catalog.TRACE_RATE, [({}, view.rate)]
    yield catalog.TRACES_KEPT, _by_reason(view.traces_kept)
    yield catalog.TRACES_LEFT, _by_reason(view.traces_left)
    yield catalog.TRACES_QUEUED, [({}, float(view.traces_queued))]
    yield catalog.SPANS_EXPORTED, [({}, float(view.spans_exported))]
    yield catalog.SPANS_DROPPED, _by_reason(view.spans_dropped)
    yield catalog.EXPORT_ATTEMPTS, [({}, float(view.attempts))]
    yield catalog.EXPORT_FAILURES, [({}, float(view.attempts_failed))]
    yield catalog.EXPORT_BYTES, [({}, float(view.bytes_sent))]
    yield catalog.EXPORT_SECONDS, [({}, view.busy_ns / 1e9)]
    yield catalog.EXPORT_LAG, [({}, view.lag_ns / 1e9)]
    if view.last_lag_ns is not None:
        yield catalog.LAST_EXPORT_LAG, [({}, view.last_lag_ns / 1e9)]


def _by_reason(counts: Mapping[str, int]) -> list[Sample]:
    return [({"reason": reason}, float(count)) for reason, count in counts.items()]
