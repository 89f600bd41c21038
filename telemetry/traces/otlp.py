"""Exports traces over OTLP from a thread that can neither block nor hang the service.

The tail sampler decides on each ended request. Sampled traces wait in a bounded queue; their spans
are built and sent in small chunks, because encoding a large one holds the interpreter lock for
milliseconds. A receiver that is gone, hangs, refuses or is slow costs spans, not latency. Every
span that did not arrive is counted under one reason: the spans of sampled traces are exported,
dropped, or still queued or in flight. Spans that a receiver took without answering in time count
as dropped, because whether they arrived is not known.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan

from telemetry.facts.base import SpanEvents
from telemetry.facts.clock import Clock, read_wall_anchor, thread_cpu_ns
from telemetry.facts.recorder import Lane
from telemetry.facts.records import ExportFailed
from telemetry.requests.phases import RequestTimeline
from telemetry.traces.export_queue import (
    QUEUE_TIMELINES,
    DeferredTraces,
    SampledTrace,
    TraceQueue,
    TracesInFlight,
)
from telemetry.traces.otlp_delivery import Delivery, Lost, RetryPolicy
from telemetry.traces.otlp_exporters import Answer, Exporter
from telemetry.traces.sampling import KeptTraces, NotSampledReason, Sampled, TailSampler
from telemetry.traces.spans import SpanBuilder
from telemetry.traces.stall_spans import Attributes
from telemetry.traces.tracing_view import DropReason, ExportStats, TracingView, view_of

log = logging.getLogger("phasescope.otlp")

CHUNK_SPANS = 32
_DEFER_NS = 2_000_000_000
_TICK_S = 0.5
_ANCHOR_EVERY_NS = 10_000_000_000
_RECORD_EVERY_NS = 1_000_000_000
_FLUSH_S = 1.2
_CLOSE_S = 0.3
_JOIN_S = 0.2


class SpanExporterThread:
    """A listener of the phase fold that exports the span trees of sampled traces. A trace whose
    stalls name a culprit that is not decided on is postponed, for a bounded time.

    `on_timeline` is called by one thread, everything else by any. `kept` holds the traces that an
    exemplar may point to. `lane` gets facts of exports that failed.
    """

    def __init__(
        self,
        exporter: Exporter,
        builder: SpanBuilder,
        sampler: TailSampler,
        clock: Clock,
        target: str,
        retry: RetryPolicy | None = None,
        capacity: int = QUEUE_TIMELINES,
        span_events: SpanEvents = lambda begin_ns, end_ns: (),
    ) -> None:
        self.sampler = sampler
        self.target = target
        self.kept = KeptTraces()
        self.lane = Lane()
        self._builder, self._span_events = builder, span_events
        self._clock = clock
        self._delivery = Delivery(exporter, clock, target, retry or RetryPolicy(), self._note)
        self._stats = ExportStats()
        self._changed = threading.Condition()  # guards all below and the stats
        self._deferred = DeferredTraces()
        self._queue = TraceQueue(capacity)
        self._in_flight = TracesInFlight()
        self._abandoned = False
        self._anchor = read_wall_anchor()
        self._recorded_ns: int | None = None  # the last fact of a failure
        self._unrecorded = 0  # failures since then
        self._thread = threading.Thread(target=self._run, name="phasescope-otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def on_timeline(self, timeline: RequestTimeline) -> None:
        """Decide on a request and queue its trace if it is sampled; never waits for the
        receiver."""
        decision = self.sampler.decide(timeline)
        if isinstance(decision, Sampled):
            self._enqueue((timeline, decision))
            return
        if self.sampler.may_become_culprit(decision):
            with self._changed:
                if self._deferred.add((timeline, decision)):
                    return
        self._not_sampled(timeline, decision)

    def view(self) -> TracingView:
        """Counters and queue as of now."""
        with self._changed:
            queued = len(self._queue) + len(self._in_flight) + (self._queue.building is not None)
            oldest_ns = self._oldest_ns()
            lag_ns = 0 if oldest_ns is None else max(0, self._clock.now_ns() - oldest_ns)
            policy, deferred = self.sampler.policy, len(self._deferred)
            return view_of(self._stats, policy, self.target, queued, deferred, lag_ns)

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or in flight; False after `timeout_s`, or when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_idle() or self._delivery.stopped, timeout_s)
            return self._is_idle()

    def shutdown(self) -> None:
        """Try to send what is queued for a bounded time, then drop and count the rest. Takes less
        than two seconds, whatever the receiver does."""
        self._delivery.hurry()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self.flush(_FLUSH_S)
        self._delivery.stop()
        closer = threading.Thread(target=self._delivery.close, daemon=True)
        closer.start()  # ends an attempt over gRPC; may itself wait for a lock
        closer.join(_CLOSE_S)
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self._abandon()

    def _enqueue(self, trace: SampledTrace) -> None:
        timeline, decision = trace
        with self._changed:
            self._stats.traces_kept[decision.reason] += 1
            if self._queue.has_room_for(timeline) and not self._abandoned:
                self.kept.add(timeline.accepted.trace_id)
                self._builder.targets.exported(timeline)
                self._queue.add(trace)
                self._changed.notify_all()
                return
        self._builder.targets.not_exported(timeline)
        self._drop(DropReason.QUEUE_FULL, self._count(trace), "the queue of traces is full")

    # The thread

    def _run(self) -> None:
        while not self._delivery.stopped:
            self._decide_deferred()
            with self._changed:
                if not self._queue.has_queued and not self._delivery.hurried:
                    self._changed.wait(_TICK_S)
                self._queue.requeue_postponed()
            self._export_queued()
            if self._delivery.hurried and self.flush(0):
                break
        with self._changed:
            self._changed.notify_all()

    def _decide_deferred(self) -> None:
        """Decide finally on deferred requests: they have become culprits by now, or not."""
        now_ns = self._clock.now_ns()
        while True:
            with self._changed:
                edge_ns = None if self._delivery.hurried else now_ns - _DEFER_NS
                deferred = self._deferred.pop_ended_before(edge_ns)
            if deferred is None:
                return
            timeline, reason = deferred
            decision = self.sampler.reconsider(timeline, reason)
            if isinstance(decision, Sampled):
                self._enqueue((timeline, decision))
            else:
                self._not_sampled(timeline, decision)

    def _must_wait(self, timeline: RequestTimeline) -> bool:
        """Whether it may link to a span of a trace that is not decided on."""
        if self._delivery.hurried or self._clock.now_ns() - timeline.ended.at_ns >= _DEFER_NS:
            return False
        return self._builder.targets.is_undecided(timeline)

    def _export_queued(self) -> None:
        """Send everything that is queued. A chunk holds whole trees where they fit."""
        chunk: list[ReadableSpan] = []
        while (trace := self._next()) is not None:
            tree = self._build(trace)
            if chunk and len(chunk) + len(tree) > CHUNK_SPANS:
                self._send(chunk)
                chunk = []
            chunk += tree
            while len(chunk) > CHUNK_SPANS:
                self._send(chunk[:CHUNK_SPANS])
                chunk = chunk[CHUNK_SPANS:]
        if chunk:
            self._send(chunk)

    def _next(self) -> SampledTrace | None:
        with self._changed:
            while not self._delivery.stopped and (trace := self._queue.take()) is not None:
                if not self._must_wait(trace[0]):
                    self._queue.begin_building(trace)
                    return trace
                self._queue.postpone(trace)
            return None

    def _build(self, trace: SampledTrace) -> list[ReadableSpan]:
        """The spans of a trace. Empty, and counted as dropped, if they cannot be built."""
        tree: list[ReadableSpan] = []
        failure: str | None = None
        try:
            tree = self._spans_of(trace)
        except Exception as error:
            log.exception("a trace could not be built")
            failure = f"building spans: {type(error).__name__}: {error}"
        with self._changed:
            if self._abandoned:
                return []
            self._queue.building = None
            if failure is None:
                self._in_flight.add(trace[0].ended.at_ns, len(tree))
            else:
                self._note_lost(trace[0].accepted.trace_id)
                self._drop(DropReason.BUILD_ERROR, 1, failure)
        return tree

    def _spans_of(self, trace: SampledTrace) -> list[ReadableSpan]:
        timeline, decision = trace
        if self._clock.now_ns() - self._anchor.monotonic_ns > _ANCHOR_EVERY_NS:
            self._anchor = read_wall_anchor()
        attributes: Attributes = {
            "sampling.reason": decision.reason.value,
            "sampling.ratio": decision.ratio,
        }
        events = self._span_events(timeline.accepted.at_ns, timeline.ended.at_ns)
        return self._builder.build(timeline, self._anchor, attributes, events)

    def _send(self, spans: Sequence[ReadableSpan]) -> None:
        """Deliver a chunk and count it. A chunk that was stopped stays in flight: `_abandon` counts
        it."""
        outcome = self._delivery.deliver(spans)
        with self._changed:
            if self._abandoned or outcome is None:
                return
            match outcome:
                case Answer():
                    self._delivered(len(spans), outcome)
                case Lost():
                    for trace_id in {span.context.trace_id for span in spans if span.context}:
                        self._note_lost(f"{trace_id:032x}")
                    self._drop(outcome.reason, len(spans), outcome.error)
            self._in_flight.remove_spans(len(spans))
            self._changed.notify_all()

    # Counters

    def _note_lost(self, trace_id: str) -> None:
        self.kept.discard(trace_id)
        self._builder.targets.lost(trace_id)

    def _note(self, answer: Answer) -> None:
        """An attempt was made, by the exporter's thread."""
        with self._changed:
            stats = self._stats
            stats.attempts += 1
            stats.attempts_failed += answer.error is not None
            stats.bytes_sent += answer.size_bytes
            stats.busy_ns = thread_cpu_ns()
            stats.last_error = answer.error or stats.last_error
        if answer.error is not None:
            self._record_failed(answer.error)

    def _record_failed(self, error: str) -> None:
        """At most one fact a second: a receiver that refuses at once must not fill the journal."""
        now_ns = self._clock.now_ns()
        self._unrecorded += 1
        if self._recorded_ns is None or now_ns - self._recorded_ns >= _RECORD_EVERY_NS:
            self.lane.append(ExportFailed(now_ns, error, self._unrecorded))
            self._recorded_ns, self._unrecorded = now_ns, 0

    def _delivered(self, spans: int, answer: Answer) -> None:
        stats, now_ns = self._stats, self._clock.now_ns()
        stats.last_export_ns = now_ns
        oldest_ns = self._in_flight.oldest_end_ns()
        stats.last_lag_ns = None if oldest_ns is None else now_ns - oldest_ns
        rejected, message = min(answer.rejected, spans), answer.message
        if rejected:
            message = f"the receiver rejected {rejected} spans: {message}"
        stats.spans_exported += spans - rejected
        self._drop(DropReason.REJECTED, rejected, message)

    def _not_sampled(self, timeline: RequestTimeline, reason: NotSampledReason) -> None:
        self._builder.targets.not_exported(timeline)
        with self._changed:
            self._stats.traces_not_sampled[reason] += 1

    def _drop(self, reason: DropReason, spans: int, error: str | None = None) -> None:
        with self._changed:
            self._stats.spans_dropped[reason] += spans
            self._stats.last_error = error or self._stats.last_error

    def _abandon(self) -> None:
        """Drop and count everything that is left. The thread, if it still hangs in a request,
        changes no counter after this."""
        with self._changed:
            self._abandoned = True
            left = self._queue.drain()
            traces, spans = self._in_flight.drain()
            traces += len(left)
            for _, reason in self._deferred.drain():
                self._stats.traces_not_sampled[reason] += 1
        spans += sum(self._count(trace) for trace in left)
        if spans:
            self._drop(DropReason.SHUTDOWN, spans)
            log.warning("%d traces (%d spans) were not exported before shutdown", traces, spans)

    def _count(self, trace: SampledTrace) -> int:
        """How many spans a dropped trace has. They are built for an exact count; a tree that cannot
        be built counts as one."""
        try:
            return len(self._spans_of(trace))
        except Exception:
            return 1

    def _oldest_ns(self) -> int | None:
        oldest_ns = self._in_flight.oldest_end_ns()
        return self._queue.oldest_end_ns() if oldest_ns is None else oldest_ns

    def _is_idle(self) -> bool:
        deferred = len(self._deferred) and self._delivery.hurried
        left = len(self._queue) or self._queue.building or len(self._in_flight)
        return not (left or deferred)
