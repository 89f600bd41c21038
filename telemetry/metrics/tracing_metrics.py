"""Values of the metrics of tracing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from telemetry.metrics.catalog import tracing
from telemetry.metrics.metric import Metric
from telemetry.traces.sampling import TracingMode
from telemetry.traces.tracing_view import TracingView

Sample = tuple[Mapping[str, str], float]


def tracing_samples(view: TracingView) -> Iterable[tuple[Metric, list[Sample]]]:
    """The view as samples of the catalog's metrics."""
    yield (
        tracing.TRACING_MODE,
        [({"mode": mode.value}, float(mode is view.mode)) for mode in TracingMode],
    )
    yield tracing.TRACE_RATE, [({}, view.rate)]
    yield tracing.TRACES_KEPT, _by_reason(view.traces_kept)
    yield tracing.TRACES_LEFT, _by_reason(view.traces_left)
    yield tracing.TRACES_QUEUED, [({}, float(view.traces_queued))]
    yield tracing.SPANS_EXPORTED, [({}, float(view.spans_exported))]
    yield tracing.SPANS_DROPPED, _by_reason(view.spans_dropped)
    yield tracing.EXPORT_ATTEMPTS, [({}, float(view.attempts))]
    yield tracing.EXPORT_FAILURES, [({}, float(view.attempts_failed))]
    yield tracing.EXPORT_BYTES, [({}, float(view.bytes_sent))]
    yield tracing.EXPORT_SECONDS, [({}, view.busy_ns / 1e9)]
    yield tracing.EXPORT_LAG, [({}, view.lag_ns / 1e9)]
    if view.last_lag_ns is not None:
        yield tracing.LAST_EXPORT_LAG, [({}, view.last_lag_ns / 1e9)]


def _by_reason(counts: Mapping[str, int]) -> list[Sample]:
    return [({"reason": reason}, float(count)) for reason, count in counts.items()]
