"""Metrics of tail sampling, and of the export of spans and metrics over OTLP."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

TRACING_MODE = Metric(
    "phasescope_tracing_mode",
    Kind.GAUGE,
    "The tracing mode: 1 for the mode in force, 0 for the others.",
    ("mode",),
)
TRACE_RATE = Metric(
    "phasescope_trace_rate",
    Kind.GAUGE,
    "Share of requests (0 to 1) that mode sampled keeps if no other reason keeps them.",
)
TRACES_KEPT = Metric(
    "phasescope_traces_kept",
    Kind.COUNTER,
    "Number of traces that tail sampling kept, by reason.",
    ("reason",),
)
TRACES_LEFT = Metric(
    "phasescope_traces_left",
    Kind.COUNTER,
    "Number of traces that tail sampling did not keep, by reason.",
    ("reason",),
)
TRACES_QUEUED = Metric(
    "phasescope_traces_queued",
    Kind.GAUGE,
    "Number of kept traces that are queued or in flight to the receiver.",
)
SPANS_EXPORTED = Metric(
    "phasescope_spans_exported", Kind.COUNTER, "Number of spans that the receiver took."
)
SPANS_DROPPED = Metric(
    "phasescope_spans_dropped",
    Kind.COUNTER,
    "Number of spans of kept traces that were not delivered, by reason; a tree that could "
    "not be built counts as one.",
    ("reason",),
)
EXPORT_ATTEMPTS = Metric(
    "phasescope_span_export_attempts",
    Kind.COUNTER,
    "Number of requests made to the span receiver, retries included.",
)
EXPORT_FAILURES = Metric(
    "phasescope_span_export_failures",
    Kind.COUNTER,
    "Number of requests that the span receiver did not take.",
)
EXPORT_BYTES = Metric(
    "phasescope_span_export_bytes",
    Kind.COUNTER,
    "Bytes of encoded spans sent; over HTTP after compression.",
)
EXPORT_SECONDS = Metric(
    "phasescope_span_export_cpu_seconds",
    Kind.COUNTER,
    "CPU time in seconds of the span exporter's thread.",
)
EXPORT_LAG = Metric(
    "phasescope_span_export_lag_seconds",
    Kind.GAUGE,
    "Age in seconds of the oldest trace that is queued or in flight, from the end of its "
    "request; 0 without one.",
)
LAST_EXPORT_LAG = Metric(
    "phasescope_span_last_export_lag_seconds",
    Kind.GAUGE,
    "Age in seconds of the oldest trace in the last chunk delivered, from the end of its "
    "request; absent before the first.",
)
METRIC_EXPORTS = Metric(
    "phasescope_otlp_metric_exports",
    Kind.COUNTER,
    "Number of exports of metrics over OTLP, by result.",
    ("result",),
)
METRIC_POINTS_REJECTED = Metric(
    "phasescope_otlp_metric_rejected_points",
    Kind.COUNTER,
    "Number of metric data points that the OTLP receiver rejected.",
)
