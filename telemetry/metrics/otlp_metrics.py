"""Metric families as the OpenTelemetry SDK's: gauges, cumulative sums, exponential histograms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry.sdk.metrics import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from telemetry.metrics.catalog.latency import OTEL_LABELS
from telemetry.metrics.exemplars import Exemplar
from telemetry.metrics.families import Family, HistogramPoint, Labels
from telemetry.metrics.metric import Kind
from telemetry.metrics.ucum import ucum
from telemetry.numbers.hdr import OTLP_SCALE, exponential_buckets

_CUMULATIVE = otel.AggregationTemporality.CUMULATIVE
_SCOPE = InstrumentationScope("phasescope")
_NONE_NEGATIVE = otel.Buckets(0, [])


@dataclass(frozen=True, slots=True)
class Interval:
    """When the counters started, and now, in Unix nanoseconds."""

    start_unix_ns: int
    now_unix_ns: int


def metrics_data(
    families: Iterable[Family], resource: Resource, interval: Interval
) -> otel.MetricsData:
    """All families that have a value."""
    metrics = [_metric(family, interval) for family in families if _has_values(family)]
    scope = otel.ScopeMetrics(_SCOPE, metrics, "")
    return otel.MetricsData([otel.ResourceMetrics(resource, [scope], "")])


def _has_values(family: Family) -> bool:
    return bool(family.samples) or any(point.values.count for point in family.histograms)


def _metric(family: Family, interval: Interval) -> otel.Metric:
    metric = family.metric
    data: otel.Gauge | otel.Sum | otel.ExponentialHistogram
    match metric.kind:
        case Kind.GAUGE:
            data = otel.Gauge(_numbers(family, interval))
        case Kind.COUNTER:
            data = otel.Sum(_numbers(family, interval), _CUMULATIVE, is_monotonic=True)
        case Kind.HISTOGRAM:
            points = [_exponential(p, interval) for p in family.histograms if p.values.count]
            data = otel.ExponentialHistogram(points, _CUMULATIVE)
    return otel.Metric(metric.otel_name, metric.help, ucum(metric), data)


def _numbers(family: Family, interval: Interval) -> list[otel.NumberDataPoint]:
    return [
        otel.NumberDataPoint(
            attributes=_attributes(labels),
            start_time_unix_nano=interval.start_unix_ns,
            time_unix_nano=interval.now_unix_ns,
            value=float(value),
        )
        for labels, value in family.samples
    ]


def _exponential(point: HistogramPoint, interval: Interval) -> otel.ExponentialHistogramDataPoint:
    values = point.values
    places, counts = exponential_buckets(values, OTLP_SCALE)
    first = int(places[0])
    dense = [0] * (int(places[-1]) - first + 1)
    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
        dense[place - first] = count
    return otel.ExponentialHistogramDataPoint(
        attributes=_attributes(point.labels),
        start_time_unix_nano=interval.start_unix_ns,
        time_unix_nano=interval.now_unix_ns,
        count=values.count,
        sum=values.sum_ns / 1e9,
        scale=OTLP_SCALE,
        zero_count=0,
        positive=otel.Buckets(first - 1, dense),  # OTLP counts a bucket by its lower bound
        negative=_NONE_NEGATIVE,
        flags=0,
        min=None,  # type: ignore[arg-type]  # not measured, and the encoder leaves it out
        max=values.max_ns / 1e9,
        exemplars=[_exemplar(exemplar) for exemplar in point.exemplars],
    )


def _exemplar(exemplar: Exemplar) -> OtelExemplar:
    return OtelExemplar(
        filtered_attributes={},
        value=exemplar.value_ns / 1e9,
        time_unix_nano=exemplar.unix_ns,
        span_id=exemplar.span_id,
        trace_id=int(exemplar.trace_id, 16),
    )


def _attributes(labels: Labels) -> dict[str, str]:
    return {OTEL_LABELS.get(name, name): value for name, value in labels.items()}
