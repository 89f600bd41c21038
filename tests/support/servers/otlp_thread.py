"""An exporting thread with short timeouts, and its counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from telemetry.facts.clock import Clock, MonotonicClock, WallAnchor
from telemetry.facts.traceparent import new_span_id
from telemetry.traces.otlp import SpanExporterThread
from telemetry.traces.otlp_config import service_resource, wire_settings
from telemetry.traces.otlp_delivery import RetryPolicy
from telemetry.traces.otlp_exporters import Exporter
from telemetry.traces.sampling import TailSampler
from telemetry.traces.spans import SpanBuilder
from telemetry.traces.tracing_view import TracingView
from tests.support.worlds.timelines import finished, fresh

PATIENT = RetryPolicy(first_s=0.02, longest_s=0.05)
HASTY = RetryPolicy(attempt_s=0.3, first_s=0.01, longest_s=0.02, give_up_s=0.1)
TREE = len(SpanBuilder(service_resource("x"), new_span_id).build(finished(), WallAnchor(0, 0)))
CHUNKS = 3  # spans of a tree that a receiver in Fault.PARTIAL rejects
WIRES = {"grpc": "grpc", "http": "http/protobuf"}

both = pytest.mark.parametrize("protocol", list(WIRES))


@contextmanager
def exporting(
    endpoint: str,
    protocol: str = "http",
    retry: RetryPolicy = PATIENT,
    sampler: TailSampler | None = None,
    builder: SpanBuilder | None = None,
    capacity: int = 2048,
    clock: Clock | None = None,
) -> Iterator[SpanExporterThread]:
    """A running exporter; shut down at the end, which must come before a hang is over."""
    thread = SpanExporterThread(
        Exporter(wire_settings(endpoint, WIRES[protocol]), retry.attempt_s),
        builder or SpanBuilder(service_resource("svc"), new_span_id),
        sampler or TailSampler(),
        clock or MonotonicClock(),
        endpoint,
        retry,
        capacity,
    )
    thread.start()
    try:
        yield thread
    finally:
        stop(thread)


def stop(thread: SpanExporterThread) -> None:
    stopping = threading.Thread(target=thread.shutdown, daemon=True)
    stopping.start()
    stopping.join(25)
    assert not stopping.is_alive(), "a shutdown hangs as long as the receiver does"


def dropped(view: TracingView) -> dict[str, int]:
    return {reason: count for reason, count in view.spans_dropped.items() if count}


def offer(thread: SpanExporterThread, count: int) -> None:
    for timeline in fresh(count):
        thread.on_timeline(timeline)
