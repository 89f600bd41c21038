"""Traces that the exporter builds, delays and counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan

from telemetry.facts.base import SpanEvent
from telemetry.facts.clock import WallAnchor
from telemetry.facts.traceparent import new_span_id
from telemetry.metrics import prometheus
from telemetry.requests.phases import RequestTimeline
from telemetry.stats.histograms import Histograms
from telemetry.stats.window_fold import Suppliers, WindowFold
from telemetry.traces.otlp_config import service_resource
from telemetry.traces.sampling import SamplingPolicy, TailSampler, TracingMode
from telemetry.traces.span_attributes import Attributes
from telemetry.traces.spans import SpanBuilder
from tests.support.servers.otlp_receiver import Fault, OtlpReceiver
from tests.support.servers.otlp_thread import CHUNKS, TREE, dropped, exporting, offer, stop
from tests.support.worlds.timelines import finished, fresh, now_ms


class FailingBuilder(SpanBuilder):
    """Fails to build the trace of r1."""

    def build(
        self,
        timeline: RequestTimeline,
        anchor: WallAnchor,
        about: Attributes | None = None,
        span_events: Sequence[SpanEvent] = (),
    ) -> list[ReadableSpan]:
        if timeline.accepted.request_id == "r1":
            raise ValueError("a bug of ours")
        return super().build(timeline, anchor, about, span_events)


def test_a_trace_that_cannot_be_built_is_the_only_one_lost() -> None:
    """A bug in one trace costs that trace."""
    builder = FailingBuilder(service_resource("svc"), new_span_id)
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, builder=builder) as thread:
        offer(thread, 3)
        assert thread.flush(20)

        assert dropped(thread.view()) == {"build_error": 1}
        assert thread.view().spans_exported == receiver.spans_taken == 2 * TREE
        assert "a bug of ours" in (thread.view().last_error or "")


def test_what_is_not_sampled_is_counted_and_never_built() -> None:
    """Off, then a share, then everything, without a restart."""
    sampler = TailSampler(SamplingPolicy(TracingMode.OFF))
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, sampler=sampler) as thread:
        offer(thread, 5)
        sampler.policy = SamplingPolicy(TracingMode.SAMPLED, 1.0)
        offer(thread, 2)
        assert thread.flush(20)
        view = thread.view()

        assert (view.traces_left["off"], view.traces_kept["preempted"]) == (5, 2)
        roots = [tree.attribute("sampling.reason") for tree in receiver.trees()]
        assert roots == ["preempted", "preempted"]
        assert {tree.attribute("sampling.ratio") for tree in receiver.trees()} == {1.0}


def test_a_culprit_found_after_its_end_is_exported_and_others_are_not() -> None:
    """A request waits for the verdict of its victims for a bounded time; a shutdown ends it."""
    culprits: set[str] = set()
    sampler = TailSampler(
        SamplingPolicy(TracingMode.SAMPLED, 0.0), is_culprit=culprits.__contains__
    )
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, sampler=sampler) as thread:
        for timeline in plain(3):
            thread.on_timeline(timeline)
        assert thread.view().traces_held == 3
        culprits.add("r1")
        stop(thread)
        view = thread.view()

        ids = [tree.attribute("gen_ai.request.id") for tree in receiver.trees()]
        assert ids == ["r1"]
        assert (view.traces_kept["culprit"], view.traces_left["rate"]) == (1, 2)
        assert view.traces_held == 0


def test_a_culprit_found_in_time_does_not_wait_for_the_shutdown() -> None:
    culprits = {"r0"}
    sampler = TailSampler(
        SamplingPolicy(TracingMode.SAMPLED, 0.0), is_culprit=lambda name: name in culprits
    )
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, sampler=sampler) as thread:
        for timeline in plain(2):
            thread.on_timeline(timeline)
        culprits.add("r1")
        receiver.wait_for(lambda trees: len(trees) == 2, "both culprits")


def plain(count: int) -> list[RequestTimeline]:
    """Unremarkable requests that have just ended."""
    return [
        dataclasses.replace(
            timeline,
            ended=finished(now_ms() - 70).ended,
            sequences=tuple(dataclasses.replace(s, preempted=()) for s in timeline.sequences),
        )
        for timeline in fresh(count)
    ]


def test_sampling_metrics_are_in_the_exposition() -> None:
    """Mode, traces by reason, drops by reason, lag, cost; a reason that never was is 0."""
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint) as thread:
        receiver.fault = Fault.PARTIAL
        offer(thread, 2)
        assert thread.flush(20)
        histograms = Histograms()
        window = WindowFold(histograms, Suppliers(tracing=thread.view))
        snapshot = window.snapshot(0)
        text = prometheus.text(prometheus.scalar_families(snapshot, ())).decode()

    rejected = 2 * CHUNKS
    assert snapshot.spans_dropped == rejected
    assert f'phasescope_spans_dropped_total{{reason="rejected_by_receiver"}} {rejected}' in text
    assert 'phasescope_spans_dropped_total{reason="queue_full"} 0' in text
    assert 'phasescope_tracing_mode{mode="full"} 1' in text
    assert 'phasescope_traces_kept_total{reason="full"} 2' in text
    assert "phasescope_span_export_cpu_seconds_total " in text
    assert "phasescope_span_last_export_lag_seconds " in text
