"""Prometheus' protobuf exposition, the only format in which it scrapes native histograms.

Length-delimited `io.prometheus.client.MetricFamily` messages, encoded by hand: fifteen fields of
a frozen format need no generated code. Classic buckets and exemplars are sent too, for a
Prometheus with native histograms switched off.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache, lru_cache

import numpy as np

from telemetry.metrics.exemplars import Exemplar, by_bucket
from telemetry.metrics.families import Family, HistogramPoint, Labels
from telemetry.metrics.metric import Kind
from telemetry.numbers.hdr import NATIVE_SCHEMA, Ints, exponential_buckets

CONTENT_TYPE = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)

_TYPE = {Kind.COUNTER: 0, Kind.GAUGE: 1, Kind.HISTOGRAM: 4}
_VALUE_FIELD = {Kind.GAUGE: 2, Kind.COUNTER: 3}
_ZERO_THRESHOLD = 2.0**-128
_RECENT_NS = 60_000_000_000

_GAP = 4
"""Buckets further apart than this are in two spans; otherwise the empty ones between are sent."""

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def protobuf(families: Iterable[Family]) -> bytes:
    """All families, each behind its length."""
    parts: list[bytes] = []
    for family in families:
        message = _family(family)
        parts += (_varint(len(message)), message)
    return b"".join(parts)


def _family(family: Family) -> bytes:
    metric = family.metric
    value_field = _VALUE_FIELD.get(metric.kind)
    parts = [
        _text(1, metric.exposed),
        _text(2, metric.help),
        _integer(3, _TYPE[metric.kind]),
    ]
    for labels, value in family.samples:
        assert value_field is not None, metric.name
        parts.append(_bytes(4, _label_pairs(1, labels) + _bytes(value_field, _double(1, value))))
    for point in family.histograms:
        histogram = _histogram(point, metric.bounds_s)
        parts.append(_bytes(4, _label_pairs(1, point.labels) + _bytes(7, histogram)))
    if metric.unit:
        parts.append(_text(5, metric.unit))
    return b"".join(parts)


def _histogram(point: HistogramPoint, bounds_s: tuple[float, ...]) -> bytes:
    values = point.values
    shown = by_bucket(point.exemplars, bounds_s)
    slowest = _slowest(shown)
    counts = values.at_most(round(bound_s * 1e9) for bound_s in bounds_s)
    tops = [*bounds_s, float("inf")]
    parts = [_integer(1, values.count), _double(2, values.sum_ns / 1e9)]
    for place, (top, count) in enumerate(zip(tops, [*counts, values.count], strict=True)):
        bucket = _integer(1, count) + _double(2, top)
        if place in slowest:
            bucket += _bytes(3, _exemplar(slowest[place]))
        parts.append(_bytes(3, bucket))
    parts += (_signed(5, NATIVE_SCHEMA), _double(6, _ZERO_THRESHOLD), _integer(7, 0))
    parts += _native(*exponential_buckets(values, NATIVE_SCHEMA))
    newest_last = sorted(shown.values(), key=lambda exemplar: exemplar.unix_ns)
    parts += (_bytes(16, _exemplar(exemplar)) for exemplar in newest_last)
    return b"".join(parts)


def _slowest(shown: dict[int, Exemplar]) -> dict[int, Exemplar]:
    """The one exemplar in the classic buckets: the slowest of the last minute.

    Prometheus versions that do not read field 16 take one exemplar a scrape from the classic
    buckets: that of the lowest bucket with one, and none older than the last they took. Newer
    versions read field 16, which has all exemplars in order of time.
    """
    newest_ns = max((exemplar.unix_ns for exemplar in shown.values()), default=0)
    recent = [place for place, e in shown.items() if e.unix_ns >= newest_ns - _RECENT_NS]
    return {place: shown[place] for place in sorted(recent)[-1:]}


def _native(places: Ints, counts: Ints) -> list[bytes]:
    """The spans of consecutive buckets, and the deltas of their counts."""
    if not len(places):
        # without a span it would be read as a classic histogram
        return [_bytes(12, _signed(1, 0) + _integer(2, 0))]
    parts: list[bytes] = []
    dense: list[Ints] = []
    end = 0  # the bucket after the last span
    cuts = np.nonzero(np.diff(places) > _GAP)[0] + 1
    for run, run_counts in zip(np.split(places, cuts), np.split(counts, cuts), strict=True):
        start, length = int(run[0]), int(run[-1] - run[0]) + 1
        parts.append(_bytes(12, _signed(1, start - end) + _integer(2, length)))
        end = start + length
        span: Ints = np.zeros(length, np.int64)
        span[run - start] = run_counts
        dense.append(span)
    deltas = np.diff(np.concatenate(dense), prepend=0)
    parts.append(_bytes(13, b"".join([_signed_varint(delta) for delta in deltas.tolist()])))
    return parts


def _exemplar(exemplar: Exemplar) -> bytes:
    seconds, nanoseconds = divmod(exemplar.unix_ns // 1_000_000 * 1_000_000, 1_000_000_000)
    stamp = _integer(1, seconds) + _integer(2, nanoseconds)
    label = _label_pairs(1, {"trace_id": exemplar.trace_id})
    return label + _double(2, exemplar.value_ns / 1e9) + _bytes(3, stamp)


def _label_pairs(field: int, labels: Labels) -> bytes:
    pairs = (_text(1, name) + _text(2, value) for name, value in sorted(labels.items()))
    return b"".join(_bytes(field, pair) for pair in pairs)


# The wire format


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else -(value << 1) - 1


@lru_cache(maxsize=1 << 16)
def _signed_varint(value: int) -> bytes:
    return _varint(_zigzag(value))


@cache
def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _integer(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _signed(field: int, value: int) -> bytes:
    return _integer(field, _zigzag(value))


def _double(field: int, value: float) -> bytes:
    return _key(field, _FIXED64) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())
