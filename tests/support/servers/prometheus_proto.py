"""`io.prometheus.client.MetricFamily` by the protobuf library, from the published schema:
an independent reader of what `telemetry.metrics.prometheus_protobuf` writes by hand."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "io.prometheus.client"
_TYPES = {
    "double": 1, "uint64": 4, "int32": 5, "int64": 3, "string": 9, "uint32": 13, "sint32": 17,
    "sint64": 18,
}  # fmt: skip
_MESSAGES: dict[str, list[tuple[str, int, str]]] = {
    "LabelPair": [("name", 1, "string"), ("value", 2, "string")],
    "Timestamp": [("seconds", 1, "int64"), ("nanos", 2, "int32")],
    "Exemplar": [("label*", 1, "LabelPair"), ("value", 2, "double"), ("timestamp", 3, "Timestamp")],
    "Gauge": [("value", 1, "double")],
    "Counter": [("value", 1, "double"), ("exemplar", 2, "Exemplar")],
    "BucketSpan": [("offset", 1, "sint32"), ("length", 2, "uint32")],
    "Bucket": [
        ("cumulative_count", 1, "uint64"), ("upper_bound", 2, "double"),
        ("exemplar", 3, "Exemplar"),
    ],
    "Histogram": [
        ("sample_count", 1, "uint64"), ("sample_sum", 2, "double"), ("bucket*", 3, "Bucket"),
        ("schema", 5, "sint32"), ("zero_threshold", 6, "double"), ("zero_count", 7, "uint64"),
        ("positive_span*", 12, "BucketSpan"), ("positive_delta*", 13, "sint64"),
        ("exemplars*", 16, "Exemplar"),
    ],
    "Metric": [
        ("label*", 1, "LabelPair"), ("gauge", 2, "Gauge"), ("counter", 3, "Counter"),
        ("histogram", 7, "Histogram"),
    ],
    "MetricFamily": [
        ("name", 1, "string"), ("help", 2, "string"), ("type", 3, "int32"),
        ("metric*", 4, "Metric"), ("unit", 5, "string"),
    ],
}  # fmt: skip


def _family_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="prometheus_test.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field.rstrip("*"), number=number)
            added.label = 3 if field.endswith("*") else 1
            if kind in _TYPES:
                added.type = _TYPES[kind]  # type: ignore[assignment]
            else:
                added.type, added.type_name = 11, f".{_PACKAGE}.{kind}"  # type: ignore[assignment]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily"))


MetricFamily = _family_class()


def families(data: bytes) -> dict[str, Any]:
    """Length-delimited families by name; nothing may be left over or unknown."""
    found: dict[str, Any] = {}
    start = 0
    while start < len(data):
        length, start = _varint(data, start)
        family = MetricFamily.FromString(data[start : start + length])
        assert family.name not in found, family.name
        found[family.name] = family
        start += length
    assert start == len(data)
    return found


def _varint(data: bytes, start: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, start


def native_buckets(histogram: Any) -> dict[int, int]:
    """Index and count of each native bucket that holds something."""
    found: dict[int, int] = {}
    place = count = 0
    deltas = iter(histogram.positive_delta)
    for span in histogram.positive_span:
        place += span.offset
        for _ in range(span.length):
            count += next(deltas)
            if count:
                found[place] = count
            place += 1
    assert next(deltas, None) is None
    return found
