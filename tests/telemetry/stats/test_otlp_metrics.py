"""Metrics over OTLP: what a real receiver gets, and what happens when it misbehaves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource

from telemetry.facts.clock import MonotonicClock
from telemetry.metrics.catalog import all_metrics
from telemetry.metrics.otlp_metrics import Interval, metrics_data
from telemetry.metrics.otlp_push import MetricPusher, PushStats
from telemetry.numbers.hdr import OTLP_SCALE
from telemetry.requests.classes import workload_class
from telemetry.requests.phases import Measure, Measured
from telemetry.traces.otlp_config import asked_target, service_resource, wire_settings
from telemetry.traces.otlp_exporters import Exporter
from tests.support.servers.otlp_receiver import Fault, OtlpReceiver
from tests.support.worlds.facts import MS
from tests.support.worlds.metrics_world import UNIX_NS, MetricsWorld, engine_started, one_request

TRACE = "c" * 32


@pytest.fixture(params=["grpc", "http"])
def receiver(request: pytest.FixtureRequest) -> Iterator[OtlpReceiver]:
    with OtlpReceiver(protocol=request.param) as running:
        yield running


def pusher_to(endpoint: str, wire: str, interval_s: float = 0.05) -> MetricPusher:
    world = MetricsWorld().feed([engine_started(), *one_request([10, 400], trace_id=TRACE)])
    exporter = Exporter(wire_settings(endpoint, wire, "metrics"))
    resource = service_resource("phasescope")
    return MetricPusher(
        world.metrics.families, exporter, MonotonicClock(), resource, endpoint, interval_s
    )


def eventually(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)


def attributes(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_a_receiver_gets_every_kind_of_metric(receiver: OtlpReceiver) -> None:
    """Gauges, cumulative sums since the start, exponential histograms with exemplars."""
    pusher = pusher_to(receiver.endpoint, receiver.wire)
    pusher.start()
    eventually(lambda: len(receiver.metric_exports) >= 2)
    pusher.shutdown()
    found = receiver.latest_metrics()

    assert found.keys() <= {metric.otel_name for metric in all_metrics()}
    (blocks,) = found["phasescope.kv_blocks"].gauge.data_points
    assert blocks.as_double == 10
    tokens = found["phasescope.output_tokens"]
    assert tokens.unit == "{token}"
    assert tokens.sum.is_monotonic
    assert tokens.sum.aggregation_temporality == 2
    (point,) = tokens.sum.data_points
    assert point.as_double == 3
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    (itl,) = found["phasescope.itl"].exponential_histogram.data_points
    assert (itl.count, itl.scale) == (2, OTLP_SCALE)
    assert itl.sum == pytest.approx(0.41)
    assert itl.max == 0.4
    assert {e.trace_id.hex() for e in itl.exemplars} == {TRACE}
    assert all(any(e.span_id) for e in itl.exemplars)
    (duration,) = found["gen_ai.server.request.duration"].exponential_histogram.data_points
    assert attributes(duration)["gen_ai.provider.name"] == "phasescope"
    assert found["gen_ai.server.request.duration"].unit == "s"
    assert pusher.stats.exported == len(receiver.metric_exports)
    assert pusher.stats.failed == 0


def test_points_that_the_receiver_refuses_are_counted(receiver: OtlpReceiver) -> None:
    receiver.rejected_points = 7
    pusher = pusher_to(receiver.endpoint, receiver.wire, interval_s=60)
    pusher.start()
    pusher.shutdown()

    assert pusher.stats.points_rejected == 7
    assert pusher.stats.last_error == "told to reject some"


def test_failed_exports_are_counted_and_the_next_one_has_all_points(receiver: OtlpReceiver) -> None:
    """Nothing is lost by a failed export: the next one says it all."""
    receiver.fault = Fault.REFUSE
    pusher = pusher_to(receiver.endpoint, receiver.wire)
    pusher.start()
    eventually(lambda: pusher.stats.failed >= 2)
    receiver.fault = None
    eventually(lambda: receiver.metric_exports)
    pusher.shutdown()

    assert receiver.latest_metrics()["phasescope.itl"]
    assert pusher.stats.exported >= 1
    assert pusher.stats.last_error


def stopped(pusher: MetricPusher, limit_s: float = 10.0) -> PushStats:
    """Stop it; a stop that hangs fails the test."""
    stopper = threading.Thread(target=pusher.shutdown, daemon=True)
    stopper.start()
    stopper.join(limit_s)
    assert not stopper.is_alive(), "shutdown hangs"
    return pusher.stats


def test_a_hanging_receiver_does_not_hang_the_shutdown(receiver: OtlpReceiver) -> None:
    receiver.fault = Fault.BLACK_HOLE
    pusher = pusher_to(receiver.endpoint, receiver.wire)
    pusher.start()
    receiver.hanging.wait(20)

    stopped(pusher)
    receiver.fault = None


@pytest.mark.parametrize("wire", ["grpc", "http/protobuf"])
def test_an_address_without_a_receiver_is_a_counted_failure(wire: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pusher = pusher_to(f"http://127.0.0.1:{port}", wire)
    pusher.start()
    eventually(lambda: pusher.stats.failed)

    assert stopped(pusher).exported == 0


@pytest.mark.parametrize(
    ("stated", "environment", "target"),
    [
        ("http://h:4318", {}, "http://h:4318/v1/metrics"),
        ("http://h:4318/v1/traces", {}, "http://h:4318/v1/metrics"),
        ("h:4317", {}, "h:4317"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318/x/"}, "http://h:4318/x/v1/metrics"),
        (None, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:4318/m"}, "http://h:4318/m"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "h:1", "OTEL_METRICS_EXPORTER": "none"}, None),
        ("http://h:4318", {"OTEL_SDK_DISABLED": "true"}, None),
        (None, {}, None),
    ],
)
def test_where_metrics_go_follows_flags_and_the_standard_variables(
    monkeypatch: pytest.MonkeyPatch,
    stated: str | None,
    environment: dict[str, str],
    target: str | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked = asked_target(stated, "metrics")
    found = None if asked is None else wire_settings(stated, None, "metrics").endpoint

    assert found == target


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(MS, 3600 * 10**9), min_size=1, max_size=100))
def test_exponential_buckets_hold_their_values(values: list[int]) -> None:
    """OTLP's bucket i reaches from base**i to base**(i + 1)."""
    world = MetricsWorld()
    for value in values:
        world.histograms.on_measured(Measured(Measure.E2E, value, 0, workload_class("", "", 4, 0)))
    interval = Interval(UNIX_NS, UNIX_NS + 1)
    request = encode_metrics(metrics_data(world.metrics.families(), Resource({}), interval))
    (metric,) = [
        metric
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "phasescope.e2e"
    ]
    (point,) = metric.exponential_histogram.data_points
    base = 2 ** (2**-OTLP_SCALE)

    assert sum(point.positive.bucket_counts) == point.count == len(values)
    assert point.positive.bucket_counts[0] > 0
    assert point.positive.bucket_counts[-1] > 0
    ordered = iter(sorted(values))
    for place, count in enumerate(point.positive.bucket_counts, point.positive.offset):
        for _ in range(count):
            value_s = next(ordered) / 1e9
            assert base**place / 1.0011 < value_s < base ** (place + 1) * 1.0011
