"""Exports traces over OTLP from a thread that can neither block nor hang the service.

A finished request is judged by the tail sampler. What is kept waits in a bounded queue; its
spans are built and sent in small chunks, because encoding a large one holds the interpreter
lock for milliseconds. A receiver that is gone, hangs, refuses or is slow costs spans, not
latency, and every span that did not arrive is counted under one reason: the spans of kept
traces are those exported, those dropped, and those still on their way. What a receiver took
without saying so in time counts as lost, for nobody can know.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan

from telemetry.facts.base import SpanEvents
from telemetry.facts.clock import Clock, read_wall_anchor, thread_cpu_ns
from telemetry.facts.recorder import Lane
from telemetry.facts.records import ExportFailed
from telemetry.requests.phases import RequestTimeline
from telemetry.traces.otlp_delivery import Delivered, Delivery, Lost, RetryPolicy
from telemetry.traces.otlp_wire import Answer, Sender
from telemetry.traces.sampling import KeptTraces, Leave, TailSampler, Verdict
from telemetry.traces.spans import SpanBuilder
from telemetry.traces.stall_spans import Attributes
from telemetry.traces.tracing_view import Drop, ExportStats, TracingView, view_of

log = logging.getLogger("phasescope.otlp")

QUEUE_TIMELINES = 2048
QUEUE_STAMPS = 1_000_000  # of tokens and chunks, of all trees that wait: some 64 MiB
CHUNK_SPANS = 32
_HELD_TIMELINES = 512
_HELD_STAMPS = 500_000
_HOLD_NS = 2_000_000_000
_TICK_S = 0.5
_ANCHOR_EVERY_NS = 10_000_000_000
_FLUSH_S = 1.2
_CLOSE_S = 0.3
_JOIN_S = 0.2

Kept = tuple[RequestTimeline, Verdict]


class SpanExporterThread:
    """A listener of the phase fold that exports the trees of the traces that are kept. A tree whose
    late tokens name a request that is not judged waits for that, for a bounded time.

    `on_timeline` is called by one thread, everything else by any. `kept` holds the traces that
    an exemplar may point to. `lane` has the facts of exports that fail.
    """

    def __init__(
        self,
        sender: Sender,
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
        self._capacity = capacity
        self._delivery = Delivery(sender, clock, target, retry or RetryPolicy(), self._note)
        self._stats = ExportStats()
        self._changed = threading.Condition()  # guards all below and the stats
        self._queue: deque[Kept] = deque()
        self._stamps = self._held_stamps = 0
        self._held: deque[tuple[RequestTimeline, Leave]] = deque()
        self._waiting: deque[Kept] = deque()  # for a verdict on those whom their stalls name
        self._building: Kept | None = None
        self._in_flight: deque[tuple[int, int]] = deque()  # (ended ns, spans left) a tree
        self._abandoned = False
        self._anchor = read_wall_anchor()
        self._thread = threading.Thread(target=self._run, name="phasescope-otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def on_timeline(self, timeline: RequestTimeline) -> None:
        """Judge a request and queue its tree if it is kept; never waits for the receiver."""
        verdict = self.sampler.decide(timeline)
        if isinstance(verdict, Verdict):
            self._enqueue((timeline, verdict))
            return
        with self._changed:
            has_room = len(self._held) < _HELD_TIMELINES and self._held_stamps < _HELD_STAMPS
            if self.sampler.may_turn_out_culprit(verdict) and has_room:
                self._held.append((timeline, verdict))
                self._held_stamps += timeline.stamps
                return
        self._leave(timeline, verdict)

    def view(self) -> TracingView:
        """Counters and queue as of now."""
        with self._changed:
            queued = len(self._queue) + len(self._waiting) + len(self._in_flight)
            queued += self._building is not None
            oldest_ns = self._oldest_ns()
            lag_ns = 0 if oldest_ns is None else max(0, self._clock.now_ns() - oldest_ns)
            policy, held = self.sampler.policy, len(self._held)
            return view_of(self._stats, policy, self.target, queued, held, lag_ns)

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is on its way; False when that took longer, or was given up."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_idle() or self._delivery.stopped, timeout_s)
            return self._is_idle()

    def shutdown(self) -> None:
        """Try to send what is queued for a bounded time, then give it up and count it.

        Takes less than two seconds, whatever the receiver does.
        """
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

    def _enqueue(self, kept: Kept) -> None:
        timeline, verdict = kept
        with self._changed:
            self._stats.traces_kept[verdict.reason] += 1
            waiting = len(self._queue) + len(self._waiting)
            stamps = timeline.stamps
            has_room = not waiting or self._stamps + stamps <= QUEUE_STAMPS
            if has_room and waiting < self._capacity and not self._abandoned:
                self.kept.add(timeline.accepted.trace_id)
                self._builder.targets.kept(timeline)
                self._queue.append(kept)
                self._stamps += stamps
                self._changed.notify_all()
                return
        self._builder.targets.left(timeline)
        self._drop(Drop.QUEUE_FULL, self._count(kept), "the queue of traces is full")

    # The thread

    def _run(self) -> None:
        while not self._delivery.stopped:
            self._settle_held()
            with self._changed:
                if not self._queue and not self._delivery.hurried:
                    self._changed.wait(_TICK_S)
                self._queue.extendleft(reversed(self._waiting))  # to be looked at again
                self._waiting.clear()
            self._export_queued()
            if self._delivery.hurried and self.flush(0):
                break
        with self._changed:
            self._changed.notify_all()

    def _settle_held(self) -> None:
        """The last word on requests that might have turned out to be culprits."""
        now_ns = self._clock.now_ns()
        while True:
            with self._changed:
                if not self._held:
                    return
                timeline, leave = self._held[0]
                if now_ns - timeline.ended.at_ns < _HOLD_NS and not self._delivery.hurried:
                    return
                self._held.popleft()
                self._held_stamps -= timeline.stamps
            verdict = self.sampler.reconsider(timeline, leave)
            if isinstance(verdict, Verdict):
                self._enqueue((timeline, verdict))
            else:
                self._leave(timeline, verdict)

    def _must_wait(self, timeline: RequestTimeline) -> bool:
        """Whether it would link to a span of which nobody knows yet whether it is exported."""
        if self._delivery.hurried or self._clock.now_ns() - timeline.ended.at_ns >= _HOLD_NS:
            return False
        return self._builder.targets.is_undecided(timeline)

    def _export_queued(self) -> None:
        """Send everything that is queued, whole trees to a chunk where they fit."""
        chunk: list[ReadableSpan] = []
        while (kept := self._next()) is not None:
            tree = self._build(kept)
            if chunk and len(chunk) + len(tree) > CHUNK_SPANS:
                self._send(chunk)
                chunk = []
            chunk += tree
            while len(chunk) > CHUNK_SPANS:
                self._send(chunk[:CHUNK_SPANS])
                chunk = chunk[CHUNK_SPANS:]
        if chunk:
            self._send(chunk)

    def _next(self) -> Kept | None:
        with self._changed:
            while self._queue and not self._delivery.stopped:
                kept = self._queue.popleft()
                if not self._must_wait(kept[0]):
                    self._building = kept
                    self._stamps -= kept[0].stamps
                    return kept
                self._waiting.append(kept)
            return None

    def _build(self, kept: Kept) -> list[ReadableSpan]:
        """The tree of a trace; nothing, and counted, when it cannot be built."""
        tree: list[ReadableSpan] = []
        failure: str | None = None
        try:
            tree = self._spans_of(kept)
        except Exception as error:
            log.exception("a trace could not be built")
            failure = f"building spans: {type(error).__name__}: {error}"
        with self._changed:
            if self._abandoned:
                return []
            self._building = None
            if failure is None:
                self._in_flight.append((kept[0].ended.at_ns, len(tree)))
            else:
                self._lose(kept[0].accepted.trace_id)
                self._drop(Drop.BUILD_ERROR, 1, failure)
        return tree

    def _spans_of(self, kept: Kept) -> list[ReadableSpan]:
        timeline, verdict = kept
        if self._clock.now_ns() - self._anchor.monotonic_ns > _ANCHOR_EVERY_NS:
            self._anchor = read_wall_anchor()
        about: Attributes = {
            "sampling.reason": verdict.reason.value,
            "sampling.ratio": verdict.ratio,
        }
        lived = self._span_events(timeline.accepted.at_ns, timeline.ended.at_ns)
        return self._builder.build(timeline, self._anchor, about, lived)

    def _send(self, spans: Sequence[ReadableSpan]) -> None:
        """Deliver a chunk and book it; one that was stopped stays in flight, for `_abandon`."""
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        outcome: Delivered | Lost | None
        try:
            request = encode_spans(spans).SerializeToString()
        except Exception as error:
            log.exception("a chunk of spans could not be encoded")
            outcome = Lost(Drop.BUILD_ERROR, f"encoding spans: {type(error).__name__}: {error}")
        else:
            outcome = self._delivery.deliver(request, len(spans))
        with self._changed:
            if self._abandoned or outcome is None:
                return
            match outcome:
                case Delivered():
                    self._delivered(len(spans), outcome)
                case Lost():
                    for trace_id in {span.context.trace_id for span in spans if span.context}:
                        self._lose(f"{trace_id:032x}")
                    self._drop(outcome.reason, len(spans), outcome.error)
            self._land(len(spans))

    # Books

    def _lose(self, trace_id: str) -> None:
        self.kept.discard(trace_id)
        self._builder.targets.lost(trace_id)

    def _note(self, answer: Answer, size_bytes: int) -> None:
        """An attempt was made, by the exporter's thread."""
        with self._changed:
            stats = self._stats
            stats.attempts += 1
            stats.attempts_failed += answer.error is not None
            stats.bytes_sent += size_bytes
            stats.busy_ns = thread_cpu_ns()
            stats.last_error = answer.error or stats.last_error
        if answer.error is not None:
            self.lane.append(ExportFailed(at_ns=self._clock.now_ns(), error=answer.error))

    def _delivered(self, spans: int, outcome: Delivered) -> None:
        stats, now_ns = self._stats, self._clock.now_ns()
        stats.last_export_ns = now_ns
        stats.last_lag_ns = now_ns - self._in_flight[0][0]
        stats.spans_exported += spans - outcome.rejected_spans
        self._drop(Drop.REJECTED, outcome.rejected_spans, outcome.remark)

    def _leave(self, timeline: RequestTimeline, reason: Leave) -> None:
        self._builder.targets.left(timeline)
        with self._changed:
            self._stats.traces_left[reason] += 1

    def _drop(self, reason: Drop, spans: int, error: str | None = None) -> None:
        with self._changed:
            self._stats.spans_dropped[reason] += spans
            self._stats.last_error = error or self._stats.last_error

    def _land(self, spans: int) -> None:
        """So many spans are no longer in flight; trees go in order."""
        while spans:
            ended_ns, left = self._in_flight.popleft()
            if left > spans:
                self._in_flight.appendleft((ended_ns, left - spans))
            spans -= min(left, spans)
        self._changed.notify_all()

    def _abandon(self) -> None:
        """Whatever is left is not exported any more, and the thread, should it still hang in
        a request, has no say in it."""
        with self._changed:
            self._abandoned = True
            building = [] if self._building is None else [self._building]
            left = [*building, *self._queue, *self._waiting]
            spans = sum(count for _, count in self._in_flight)
            traces = len(left) + len(self._in_flight)
            self._queue.clear()
            self._waiting.clear()
            self._stamps = 0
            self._in_flight.clear()
            self._building = None
            for _, leave in self._held:
                self._stats.traces_left[leave] += 1
            self._held.clear()
            self._held_stamps = 0
        spans += sum(self._count(kept) for kept in left)
        if spans:
            self._drop(Drop.SHUTDOWN, spans)
            log.warning("%d traces (%d spans) were not exported before shutdown", traces, spans)

    def _count(self, kept: Kept) -> int:
        """Spans of a tree that is thrown away: it is built to be counted, so that the count is
        exact. A tree that cannot be built counts as one."""
        try:
            return len(self._spans_of(kept))
        except Exception:
            return 1

    def _oldest_ns(self) -> int | None:
        if self._in_flight:
            return self._in_flight[0][0]
        building = [] if self._building is None else [self._building]
        heads = (queue[0] for queue in (building, self._waiting, self._queue) if queue)
        return min((timeline.ended.at_ns for timeline, _ in heads), default=None)

    def _is_idle(self) -> bool:
        held = bool(self._held) and self._delivery.hurried
        left = self._queue or self._waiting or self._building or self._in_flight
        return not (left or held)
