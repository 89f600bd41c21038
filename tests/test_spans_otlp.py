"""Spans built after the fact, and an exporter that can neither block nor hang."""

from __future__ import annotations

import logging
import threading

import pytest
from facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from opentelemetry.trace.status import StatusCode
from otlp_receiver import OtlpReceiver
from server import free_port

from telemetry.clock import MonotonicClock, WallAnchor, read_wall_anchor
from telemetry.otlp import SpanExporterThread, exporter_from_config, service_resource
from telemetry.phase_fold import PhaseFold
from telemetry.phases import RequestTimeline
from telemetry.reasons import EndReason, WaitReason
from telemetry.records import Fact, Skip
from telemetry.spans import SpanBuilder
from telemetry.traceparent import new_span_id, new_trace_id, parse_traceparent

ANCHOR = WallAnchor(monotonic_ns=0, unix_ns=1_700_000_000_000_000_000)


def timeline_of(facts: list[Fact]) -> RequestTimeline:
    found: list[RequestTimeline] = []
    PhaseFold([found.append]).on_facts(facts)
    (timeline,) = found
    return timeline


def finished(shift_ms: int = 0, **fields: object) -> RequestTimeline:
    """A life with a preemption, moved in time by `shift_ms`."""
    s = shift_ms
    return timeline_of(
        [
            accepted(at=s, **fields),
            parsed(at=s + 1),
            tokenized(at=s + 2),
            submitted(at=s + 2),
            queued(at=s + 3),
            step(0, s + 10, s + 20, [prefill(sampled=False)]),
            step(1, s + 20, s + 30, [prefill(context=4)]),
            step(2, s + 30, s + 40, [], (Skip(1, WaitReason.PREEMPTED, None),), preempted=(1,)),
            step(3, s + 40, s + 50, [prefill(tokens=9)]),
            step(4, s + 50, s + 55, [decode()]),
            sequence_ended(at=s + 55),
            request_ended(at=s + 70),
        ]
    )


def build(timeline: RequestTimeline) -> list[ReadableSpan]:
    return SpanBuilder(service_resource("svc"), new_span_id).build(timeline, ANCHOR)


def named(spans: list[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def test_the_tree_has_the_timelines_times_and_parents() -> None:
    """Root, phases under it, chunks under prefill, the recomputed chunk under its preemption."""
    spans = build(finished())
    root = spans[0]
    (gap,) = named(spans, "preempted")
    chunks = named(spans, "prefill.chunk")
    assert root.kind is SpanKind.SERVER
    assert root.context is not None
    assert gap.context is not None

    assert root.start_time == ANCHOR.unix_ns
    assert root.end_time == ANCHOR.unix_ns + 70 * MS
    (first, second, third) = chunks
    (prefill_span,) = named(spans, "prefill")
    assert first.parent == second.parent == prefill_span.context
    assert third.parent == gap.context
    ids = [span.context.span_id for span in spans if span.context]
    assert len(set(ids)) == len(spans)
    assert {span.context.trace_id for span in spans if span.context} == {root.context.trace_id}


def test_an_incoming_parent_is_the_roots_remote_parent() -> None:
    """The caller's span id, marked remote."""
    spans = build(finished(parent_span_id="00f067aa0ba902b7", trace_sampled=True))

    assert spans[0].parent is not None
    assert spans[0].parent.is_remote
    assert spans[0].parent.span_id == 0x00F067AA0BA902B7


@pytest.mark.parametrize(
    ("reason", "status", "error"),
    [
        (EndReason.MAX_TOKENS, StatusCode.UNSET, None),
        (EndReason.QUEUE_FULL, StatusCode.UNSET, "queue_full"),
        (EndReason.DISCONNECT, StatusCode.UNSET, "disconnect"),
        (EndReason.ENGINE_DIED, StatusCode.ERROR, "engine_died"),
    ],
)
def test_outcomes_are_told_apart(reason: EndReason, status: StatusCode, error: str | None) -> None:
    """Only a failure of ours is an error; the others say what they are."""
    facts: list[Fact] = [accepted(), parsed(), tokenized(), request_ended(reason=reason)]
    root = build(timeline_of(facts))[0]
    assert root.attributes is not None

    assert root.status.status_code is status
    assert root.attributes.get("error.type") == error
    assert root.attributes["phasescope.outcome"] == reason.outcome.value


def test_names_that_other_tools_read_are_there() -> None:
    """GenAI convention and vLLM's latency names."""
    attributes = build(finished())[0].attributes
    assert attributes is not None

    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.usage.prompt_tokens"] == 4
    assert attributes["gen_ai.latency.e2e"] == pytest.approx(0.070)
    assert attributes["gen_ai.latency.time_in_queue"] == pytest.approx(0.008)
    assert attributes["gen_ai.latency.time_in_model_prefill"] == pytest.approx(0.020)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "garbage",
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-extra",
        "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
    ],
)
def test_an_invalid_traceparent_is_no_parent(header: str | None) -> None:
    """Then a new trace begins."""
    assert parse_traceparent(header) is None


def test_a_valid_traceparent_of_a_later_version_is_read() -> None:
    """Unknown later versions may carry more fields."""
    parent = parse_traceparent("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more")

    assert parent is not None
    assert (parent.span_id, parent.sampled) == ("00f067aa0ba902b7", False)


def exporter_to(endpoint: str, protocol: str, capacity: int | None = None) -> SpanExporterThread:
    thread = exporter_from_config(endpoint, protocol, "svc", MonotonicClock())
    assert thread is not None
    if capacity is not None:
        thread._capacity = capacity
    thread.start()
    return thread


def now_ms() -> int:
    return read_wall_anchor().monotonic_ns // MS


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_trees_arrive_whole_over_both_protocols(protocol: str) -> None:
    """Forty trees, more than one chunk, all sound."""
    wire = "grpc" if protocol == "grpc" else "http/protobuf"
    with OtlpReceiver(protocol) as receiver:
        thread = exporter_to(receiver.endpoint, wire)
        for index in range(40):
            fields = {"request_id": f"r{index}", "trace_id": new_trace_id()}
            facts_timeline = finished(shift_ms=now_ms() - 1000)
            thread.on_timeline(_renamed(facts_timeline, **fields))
        receiver.wait_for(lambda found: len(found) == 40, "40 trees")
        receiver.check_all()
        thread.shutdown()
        received = sum(len(tree.spans) for tree in receiver.trees())

    assert thread.stats.spans_exported == received
    assert thread.stats.spans_dropped == 0


def _renamed(timeline: RequestTimeline, **fields: str) -> RequestTimeline:
    import dataclasses

    import msgspec

    changed = msgspec.structs.replace(timeline.accepted, **fields)
    return dataclasses.replace(timeline, accepted=changed)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_hanging_collector_blocks_neither_requests_nor_shutdown(protocol: str) -> None:
    """While an export hangs, offering returns, the queue stays bounded, and stopping works."""
    wire = "grpc" if protocol == "grpc" else "http/protobuf"
    with OtlpReceiver(protocol) as receiver:
        receiver.release.clear()
        thread = exporter_to(receiver.endpoint, wire, capacity=5)
        thread.on_timeline(finished(shift_ms=now_ms()))
        assert receiver.hanging.wait(10)  # the exporter is stuck in here now
        for _ in range(20):
            thread.on_timeline(finished(shift_ms=now_ms()))
        assert thread.stats.spans_dropped > 0
        stopping = threading.Thread(target=thread.shutdown, daemon=True)
        stopping.start()
        stopping.join(10)
        assert not stopping.is_alive()


def test_a_refusing_collector_is_said_once_and_costs_spans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line when it goes, one when it is back."""
    with OtlpReceiver("http") as receiver, caplog.at_level(logging.WARNING, "phasescope.otlp"):
        thread = exporter_to(receiver.endpoint, "http/protobuf")
        receiver.refusing.set()
        for _ in range(3):
            thread.on_timeline(finished(shift_ms=now_ms()))
            assert thread._drained.wait(10)
        receiver.refusing.clear()
        thread.on_timeline(finished(shift_ms=now_ms()))
        receiver.wait_for(bool, "a tree after the fault")
        thread.shutdown()

    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "do not reach" in line]) == 1
    assert len([line for line in lines if "again" in line]) == 1
    assert thread.stats.spans_dropped > 0


def test_an_absent_collector_leaves_the_exporter_stoppable() -> None:
    """Nobody listens: shutdown returns and everything is counted."""
    thread = exporter_to(f"http://127.0.0.1:{free_port()}", "grpc")
    thread.on_timeline(finished(shift_ms=now_ms()))
    stopping = threading.Thread(target=thread.shutdown, daemon=True)
    stopping.start()
    stopping.join(15)

    assert not stopping.is_alive()
    assert thread.stats.spans_exported == 0


def test_without_an_endpoint_there_is_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the standard switches turn it off."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert exporter_from_config(None, None, None, MonotonicClock()) is None

    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert exporter_from_config("http://x:4317", None, None, MonotonicClock()) is None
