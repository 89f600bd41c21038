"""Spans built after the fact, within limits, and where they are sent."""

from __future__ import annotations

import dataclasses
import os

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from opentelemetry.trace.status import StatusCode

from telemetry.facts.clock import MonotonicClock, WallAnchor
from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.facts.records import Fact
from telemetry.facts.traceparent import new_span_id, parse_traceparent
from telemetry.requests.phases import ChunkSpan, PreemptedSpan, RequestTimeline, WaitSpan
from telemetry.traces.otlp_config import exporter_from_config, service_resource, wire_settings
from telemetry.traces.span_attributes import MAX_ATTRIBUTES
from telemetry.traces.spans import (
    MAX_CHUNKS,
    MAX_OWN_WAITS,
    MAX_PREEMPTED,
    MAX_SLOW_GAPS,
    SpanBuilder,
)
from tests.support.worlds.facts import MS, accepted, parsed, request_ended, tokenized
from tests.support.worlds.timelines import finished, timeline_of

ANCHOR = WallAnchor(monotonic_ns=0, unix_ns=1_700_000_000_000_000_000)


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
def test_each_outcome_has_its_status_and_error_type(
    reason: EndReason, status: StatusCode, error: str | None
) -> None:
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
    assert attributes["gen_ai.response.id"] == "cmpl-r1"
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["gen_ai.output.type"] == "text"
    assert attributes["gen_ai.usage.num_sequences"] == 1


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


def test_the_root_span_has_the_server_address_and_the_sampling_reason() -> None:
    """Server address, and why the trace is kept."""
    builder = SpanBuilder(service_resource("svc"), new_span_id, ("10.0.0.7", 8000))
    root = builder.build(finished(), ANCHOR, {"sampling.reason": "slow"})[0]
    assert root.attributes is not None

    assert root.attributes["server.address"] == "10.0.0.7"
    assert root.attributes["server.port"] == 8000
    assert root.attributes["sampling.reason"] == "slow"


def test_a_root_whose_caller_does_not_sample_has_no_parent_but_an_attribute() -> None:
    """A parent that nobody recorded would make the trace look broken."""
    root = build(finished(parent_span_id="00f067aa0ba902b7", trace_sampled=False))[0]
    assert root.attributes is not None

    assert root.parent is None
    assert root.attributes["phasescope.unsampled_parent"] == "00f067aa0ba902b7"


def oversized() -> RequestTimeline:
    """A request with more chunks, stalls and preemptions than a trace holds."""
    timeline = finished()
    (sequence,) = timeline.sequences
    inside = range(11 * MS, 11 * MS + 400)
    after_ns = 31 * MS
    gaps_us = [1] * 50 + [9] * (MAX_SLOW_GAPS + 3)
    tokens = [after_ns]
    for gap_us in gaps_us:
        tokens.append(tokens[-1] + gap_us * 1000)
    full = dataclasses.replace(
        sequence,
        chunks=tuple(ChunkSpan(1, i, at, at + 1, 1, 0, 0, 0) for i, at in enumerate(inside)),
        preempted=tuple(PreemptedSpan(1, i, at, at + 1) for i, at in enumerate(inside)),
        waits=tuple(WaitSpan(WaitReason.CLIENT_PAUSE, None, at, at + 1) for at in inside),
        token_ns=tuple(tokens),
    )
    return dataclasses.replace(timeline, sequences=(full,))


def test_spans_beyond_the_limits_are_counted_on_their_parent() -> None:
    """Nothing is cut silently."""
    spans = build(oversized())
    (prefill_span,) = named(spans, "prefill")
    (decode_span,) = named(spans, "decode")
    assert prefill_span.attributes is not None
    assert decode_span.attributes is not None

    assert len(named(spans, "prefill.chunk")) == MAX_CHUNKS
    assert len(named(spans, "preempted")) == MAX_PREEMPTED
    assert len(named(spans, "client.pause")) == MAX_OWN_WAITS
    assert prefill_span.attributes["phasescope.cut.chunks"] == 400 - MAX_CHUNKS
    assert prefill_span.attributes["phasescope.cut.preempted"] == 400 - MAX_PREEMPTED
    assert prefill_span.attributes["phasescope.cut.holds"] == 400 - MAX_OWN_WAITS
    assert len(decode_span.events) == MAX_SLOW_GAPS
    assert decode_span.attributes["phasescope.cut.slow_tokens"] == 3


def test_no_span_has_more_attributes_than_any_receiver_takes() -> None:
    """The guard of last resort says how many it cut."""
    about = {f"extra.{index}": index for index in range(200)}
    builder = SpanBuilder(service_resource("svc"), new_span_id)
    root = builder.build(finished(), ANCHOR, about)[0]
    assert root.attributes is not None

    usual = len(build(finished())[0].attributes or {})
    assert len(root.attributes) == MAX_ATTRIBUTES
    assert root.attributes["phasescope.cut.attributes"] == usual + 200 - (MAX_ATTRIBUTES - 1)


def test_a_rejected_request_has_no_attributes_of_a_response() -> None:
    """No response id, no finish reason, no time to a first chunk."""
    facts: list[Fact] = [
        accepted(),
        parsed(),
        request_ended(reason=EndReason.QUEUE_FULL, status=429),
    ]
    attributes = build(timeline_of(facts))[0].attributes or {}

    for name in ("response.id", "response.finish_reasons", "response.time_to_first_chunk"):
        assert f"gen_ai.{name}" not in attributes


def test_penalties_and_json_are_on_the_root() -> None:
    timeline = finished()
    assert timeline.parsed is not None
    changed = msgspec.structs.replace(timeline.parsed, output_type="json", presence_penalty=0.5)
    attributes = build(dataclasses.replace(timeline, parsed=changed))[0].attributes or {}

    assert attributes["gen_ai.output.type"] == "json"
    assert attributes["gen_ai.request.presence_penalty"] == 0.5


def clear_otel(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in values.items():
        monkeypatch.setenv(f"OTEL_{name}", value)


def test_without_an_endpoint_there_is_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the standard switches turn it off."""
    clear_otel(monkeypatch)
    assert exporter_from_config(None, None, None, MonotonicClock()) is None

    clear_otel(monkeypatch, EXPORTER_OTLP_ENDPOINT="http://x:4317", TRACES_EXPORTER="none")
    assert exporter_from_config(None, None, None, MonotonicClock()) is None

    clear_otel(monkeypatch, SDK_DISABLED="true")
    assert exporter_from_config("http://x:4317", None, None, MonotonicClock()) is None


@pytest.mark.parametrize(
    ("flag", "variables", "endpoint", "is_http"),
    [
        ("http://x:4317", {}, "x:4317", False),
        ("x:4317", {}, "x:4317", False),
        ("http://x:4318", {}, "http://x:4318/v1/traces", True),
        ("http://x:9/custom", {}, "http://x:9/custom", True),
        (None, {"ENDPOINT": "http://x:4318"}, "http://x:4318/v1/traces", True),
        (None, {"ENDPOINT": "http://x:4318/base/"}, "http://x:4318/base/v1/traces", True),
        (None, {"TRACES_ENDPOINT": "http://x:4318/exact"}, "http://x:4318/exact", True),
        (
            None,
            {"ENDPOINT": "http://x:1", "PROTOCOL": "http/protobuf"},
            "http://x:1/v1/traces",
            True,
        ),
        (None, {"ENDPOINT": "http://x:4318", "TRACES_PROTOCOL": "grpc"}, "x:4318", False),
    ],
)
def test_endpoints_are_read_as_the_standard_says(
    monkeypatch: pytest.MonkeyPatch,
    flag: str | None,
    variables: dict[str, str],
    endpoint: str,
    is_http: bool,
) -> None:
    """A general variable is a base, one for traces the whole URL; ports and paths tell HTTP."""
    clear_otel(monkeypatch, **{f"EXPORTER_OTLP_{name}": v for name, v in variables.items()})
    settings = wire_settings(flag, None)

    assert (settings.endpoint, settings.is_http) == (endpoint, is_http)


@pytest.mark.parametrize(
    ("flag", "variables", "insecure"),
    [
        ("x:4317", {}, True),
        ("https://x:4317", {}, False),
        (None, {"ENDPOINT": "x:4317"}, False),
        (None, {"ENDPOINT": "x:4317", "INSECURE": "true"}, True),
    ],
)
def test_the_scheme_decides_whether_the_channel_is_encrypted(
    monkeypatch: pytest.MonkeyPatch, flag: str | None, variables: dict[str, str], insecure: bool
) -> None:
    clear_otel(monkeypatch, **{f"EXPORTER_OTLP_{name}": v for name, v in variables.items()})

    assert wire_settings(flag, None).insecure is insecure
