"""Metric families as OTLP messages: gauges, cumulative sums, exponential histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

from telemetry.metrics.catalog.latency import OTEL_LABELS
from telemetry.metrics.exemplars import Exemplar
from telemetry.metrics.families import Family, HistogramPoint, Labels
from telemetry.metrics.metric import Kind, Metric
from telemetry.numbers.hdr import OTLP_SCALE, exponential_buckets

_CUMULATIVE = metrics_pb2.AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "": "1"}
_SCOPE = "phasescope"


@dataclass(frozen=True, slots=True)
class Interval:
    """When the counters started, and now, in Unix nanoseconds."""

    start_unix_ns: int
    now_unix_ns: int


def export_request(
    families: Iterable[Family], resource: Labels, interval: Interval
) -> ExportMetricsServiceRequest:
    """One message with all families that have a value."""
    metrics = [_metric(family, interval) for family in families if _has_values(family)]
    scope = metrics_pb2.ScopeMetrics(metrics=metrics)
    scope.scope.name = _SCOPE
    group = metrics_pb2.ResourceMetrics(
        resource=ResourceMessage(attributes=_attributes(resource)), scope_metrics=[scope]
    )
    return ExportMetricsServiceRequest(resource_metrics=[group])


def _has_values(family: Family) -> bool:
    return bool(family.samples) or any(point.values.count for point in family.histograms)


def _metric(family: Family, interval: Interval) -> metrics_pb2.Metric:
    metric = family.metric
    message = metrics_pb2.Metric(name=metric.otel_name, description=metric.help, unit=_unit(metric))
    match metric.kind:
        case Kind.GAUGE:
            message.gauge.data_points.extend(_numbers(family, None, interval))
        case Kind.COUNTER:
            message.sum.aggregation_temporality = _CUMULATIVE
            message.sum.is_monotonic = True
            message.sum.data_points.extend(_numbers(family, interval.start_unix_ns, interval))
        case Kind.HISTOGRAM:
            message.exponential_histogram.aggregation_temporality = _CUMULATIVE
            message.exponential_histogram.data_points.extend(
                _exponential(point, interval) for point in family.histograms if point.values.count
            )
    return message


def _unit(metric: Metric) -> str:
    """The unit in UCUM; the thing that is counted is an annotation, as in {request}."""
    return _UNITS.get(metric.counted) or f"{{{metric.counted.removesuffix('s')}}}"


def _numbers(
    family: Family, start_unix_ns: int | None, interval: Interval
) -> Sequence[metrics_pb2.NumberDataPoint]:
    return [
        metrics_pb2.NumberDataPoint(
            attributes=_attributes(labels),
            start_time_unix_nano=start_unix_ns or 0,
            time_unix_nano=interval.now_unix_ns,
            as_double=value,
        )
        for labels, value in family.samples
    ]


def _exponential(
    point: HistogramPoint, interval: Interval
) -> metrics_pb2.ExponentialHistogramDataPoint:
    values = point.values
    message = metrics_pb2.ExponentialHistogramDataPoint(
        attributes=_attributes(point.labels),
        start_time_unix_nano=interval.start_unix_ns,
        time_unix_nano=interval.now_unix_ns,
        count=values.count,
        sum=values.sum_ns / 1e9,
        max=values.max_ns / 1e9,
        scale=OTLP_SCALE,
        exemplars=[_exemplar(exemplar) for exemplar in point.exemplars],
    )
    places, counts = exponential_buckets(values, OTLP_SCALE)
    first = int(places[0])
    dense = [0] * (int(places[-1]) - first + 1)
    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
        dense[place - first] = count
    message.positive.offset = first - 1  # OTLP counts a bucket by its lower bound
    message.positive.bucket_counts.extend(dense)
    return message


def _exemplar(exemplar: Exemplar) -> metrics_pb2.Exemplar:
    return metrics_pb2.Exemplar(
        time_unix_nano=exemplar.unix_ns,
        as_double=exemplar.value_ns / 1e9,
        trace_id=bytes.fromhex(exemplar.trace_id),
    )


def _attributes(labels: Labels) -> list[KeyValue]:
    return [
        KeyValue(key=OTEL_LABELS.get(name, name), value=AnyValue(string_value=value))
        for name, value in labels.items()
    ]
