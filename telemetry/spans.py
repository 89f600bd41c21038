"""A timeline becomes a tree of OpenTelemetry spans, after the fact, with its own times.

Spans are built as finished `ReadableSpan`s: ids and times are ours, and the hot path never
sees a span object. One wall anchor serves a whole trace, so that a step of the wall clock
cannot turn a child inside out. No span carries a prompt or an output.

Status: ERROR for failed requests only; rejected and cancelled ones are what was asked of
the server, and say so in `error.type` and `phasescope.outcome`. Finished ones are unset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import AttributeValue

from telemetry.clock import WallAnchor
from telemetry.phases import ChunkSpan, PhaseSpan, PreemptedSpan, RequestTimeline
from telemetry.reasons import Outcome, Phase, WaitReason
from telemetry.stall_spans import (
    account_attributes,
    chunk_span_id,
    culprit_links,
    stall_attributes,
)

SCOPE = InstrumentationScope("phasescope", "1")
MAX_CHUNKS = 256
MAX_SLOW_GAPS = 16
MAX_HOLDS = 64
MAX_STALLS = 64
_HOLDS = {WaitReason.GRAMMAR: "grammar.compile", WaitReason.CLIENT_PAUSE: "client.pause"}
_SLOW_FACTOR = 2

Attributes = dict[str, AttributeValue]


class SpanBuilder:
    """Builds the trees of timelines under one resource."""

    def __init__(self, resource: Resource, new_span_id: Callable[[], str]) -> None:
        self._resource = resource
        self._new_span_id = new_span_id

    def build(self, timeline: RequestTimeline, anchor: WallAnchor) -> list[ReadableSpan]:
        """Root first, then the phases in order, each followed by its children."""
        tree = _Tree(self._resource, self._new_span_id, timeline, anchor)
        root = tree.root()
        spans = [root]
        for phase in timeline.phases:
            span = tree.phase(phase, root)
            spans.append(span)
            spans += tree.children(phase, span)
        return spans


class _Tree:
    """One trace in the making."""

    def __init__(
        self,
        resource: Resource,
        new_span_id: Callable[[], str],
        timeline: RequestTimeline,
        anchor: WallAnchor,
    ) -> None:
        self._resource = resource
        self._new_span_id = new_span_id
        self._timeline = timeline
        self._anchor = anchor
        accepted = timeline.accepted
        self._trace_id = int(accepted.trace_id, 16)
        state = accepted.trace_state
        self._state = TraceState.from_header([state]) if state else None

    def root(self) -> ReadableSpan:
        timeline = self._timeline
        accepted, parsed = timeline.accepted, timeline.parsed
        parent = None
        if accepted.parent_span_id is not None:
            parent = self._context(int(accepted.parent_span_id, 16), remote=True)
        name = accepted.operation if parsed is None else f"{accepted.operation} {parsed.model}"
        status = Status(StatusCode.UNSET)
        if timeline.outcome is Outcome.FAILED:
            status = Status(StatusCode.ERROR, timeline.ended.error_type)
        return self._span(
            name,
            parent,
            accepted.at_ns,
            timeline.ended.at_ns,
            root_attributes(timeline),
            kind=SpanKind.SERVER,
            status=status,
        )

    def phase(self, phase: PhaseSpan, root: ReadableSpan) -> ReadableSpan:
        timeline = self._timeline
        attributes = phase_attributes(timeline, phase.name)
        if timeline.truncated and phase is timeline.phases[-1]:
            attributes["phasescope.truncated"] = True
        events = _slow_gaps(timeline, phase, self._anchor) if phase.name is Phase.DECODE else ()
        return self._span(
            phase.name.value, root.context, phase.start_ns, phase.end_ns, attributes, events
        )

    def children(self, phase: PhaseSpan, parent: ReadableSpan) -> list[ReadableSpan]:
        """Holds, stalls, preemptions and prefill chunks that begin within the phase."""
        spans = self._holds_in(phase, parent) + self._stalls_in(phase, parent)
        gaps = [
            gap
            for sequence in self._timeline.sequences
            for gap in sequence.preempted
            if _begins_in(gap.start_ns, phase)
        ]
        holders: list[tuple[PreemptedSpan, ReadableSpan]] = []
        for gap in gaps:
            end_ns = min(gap.end_ns, phase.end_ns)
            attributes: Attributes = {
                "phasescope.step_id": gap.step_id,
                "phasescope.seq_id": gap.seq_id,
            }
            span = self._span("preempted", parent.context, gap.start_ns, end_ns, attributes)
            spans.append(span)
            holders.append((gap, span))
        for chunk in self._chunks_in(phase):
            holder = next((span for gap, span in holders if _holds(gap, chunk)), parent)
            spans.append(self._chunk(chunk, holder, phase))
        return spans

    def _holds_in(self, phase: PhaseSpan, parent: ReadableSpan) -> list[ReadableSpan]:
        """What held a sequence back of its own: its grammar, or its reader."""
        found: list[ReadableSpan] = []
        for sequence in self._timeline.sequences:
            attributes: Attributes = {"phasescope.seq_id": sequence.seq_id}
            for wait in sequence.waits:
                name = _HOLDS.get(wait.reason)
                if name is not None and _begins_in(wait.start_ns, phase):
                    end_ns = min(wait.end_ns, phase.end_ns)
                    context = parent.context
                    found.append(self._span(name, context, wait.start_ns, end_ns, attributes))
        return found[:MAX_HOLDS]

    def _stalls_in(self, phase: PhaseSpan, parent: ReadableSpan) -> list[ReadableSpan]:
        """Late tokens, each linked to the chunk of the request that made it late."""
        account = self._timeline.account
        if account is None:
            return []
        found: list[ReadableSpan] = []
        for stall in account.stalls[:MAX_STALLS]:
            if _begins_in(stall.begin_ns, phase):
                end_ns = min(stall.end_ns, phase.end_ns)
                found.append(
                    self._span(
                        "stall",
                        parent.context,
                        stall.begin_ns,
                        end_ns,
                        stall_attributes(stall),
                        links=culprit_links(stall),
                    )
                )
        return found

    def _chunks_in(self, phase: PhaseSpan) -> list[ChunkSpan]:
        found = [
            chunk
            for sequence in self._timeline.sequences
            for chunk in sequence.chunks
            if _begins_in(chunk.start_ns, phase)
        ]
        return found[:MAX_CHUNKS]

    def _chunk(self, chunk: ChunkSpan, holder: ReadableSpan, phase: PhaseSpan) -> ReadableSpan:
        attributes: Attributes = {
            "phasescope.step_id": chunk.step_id,
            "phasescope.seq_id": chunk.seq_id,
            "phasescope.chunk.tokens": chunk.tokens,
            "phasescope.chunk.context_tokens": chunk.context_tokens,
            "phasescope.chunk.recompute_tokens": chunk.recompute_tokens,
        }
        end_ns = min(chunk.end_ns, phase.end_ns)
        span_id = chunk_span_id(self._timeline.accepted.trace_id, chunk.seq_id, chunk.step_id)
        context = holder.context
        return self._span(
            "prefill.chunk", context, chunk.start_ns, end_ns, attributes, span_id=span_id
        )

    def _span(
        self,
        name: str,
        parent: SpanContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        events: Sequence[Event] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status | None = None,
        links: Sequence[Link] = (),
        span_id: int | None = None,
    ) -> ReadableSpan:
        return ReadableSpan(
            name=name,
            context=self._context(span_id or int(self._new_span_id(), 16)),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=events,
            links=links,
            kind=kind,
            instrumentation_scope=SCOPE,
            status=status or Status(StatusCode.UNSET),
            start_time=self._anchor.to_unix_ns(start_ns),
            end_time=self._anchor.to_unix_ns(max(start_ns, end_ns)),
        )

    def _context(self, span_id: int, remote: bool = False) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(self._trace_id, span_id, remote, flags, self._state)


def _begins_in(start_ns: int, phase: PhaseSpan) -> bool:
    return phase.start_ns <= start_ns < phase.end_ns


def _holds(gap: PreemptedSpan, chunk: ChunkSpan) -> bool:
    return gap.seq_id == chunk.seq_id and gap.start_ns <= chunk.start_ns < gap.end_ns


def root_attributes(timeline: RequestTimeline) -> Attributes:
    """GenAI convention, the names that vLLM emits, and ours."""
    accepted, parsed, ended = timeline.accepted, timeline.parsed, timeline.ended
    attributes: Attributes = {
        "gen_ai.operation.name": accepted.operation,
        "gen_ai.provider.name": "phasescope",
        "gen_ai.request.id": accepted.request_id,
        "gen_ai.usage.output_tokens": ended.output_tokens,
        "gen_ai.usage.completion_tokens": ended.output_tokens,
        "gen_ai.latency.e2e": timeline.e2e_ns / 1e9,
        "http.request.method": "POST",
        "http.route": accepted.route,
        "http.response.status_code": ended.status,
        "phasescope.outcome": timeline.outcome.value,
        "phasescope.reason": ended.reason.value,
        "phasescope.tenant": accepted.tenant,
        "phasescope.slo_class": accepted.slo_class,
    }
    if ended.error_type is not None:
        attributes["error.type"] = ended.error_type
    if parsed is not None:
        attributes |= {
            "gen_ai.request.model": parsed.model,
            "gen_ai.response.model": parsed.model,
            "gen_ai.request.stream": parsed.stream,
            "gen_ai.request.choice.count": parsed.choices,
            "gen_ai.request.n": parsed.choices,
            "gen_ai.request.temperature": parsed.temperature,
            "gen_ai.request.top_p": parsed.top_p,
            "gen_ai.request.top_k": parsed.top_k,
        }
        if parsed.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = parsed.max_tokens
        if parsed.seed is not None:
            attributes["gen_ai.request.seed"] = parsed.seed
    if timeline.tokenized is not None:
        attributes["gen_ai.usage.input_tokens"] = timeline.tokenized.prompt_tokens
        attributes["gen_ai.usage.prompt_tokens"] = timeline.tokenized.prompt_tokens
        attributes["gen_ai.usage.cache_read.input_tokens"] = timeline.cached_tokens
    if ended.output_valid is not None:
        attributes["phasescope.output_valid"] = ended.output_valid
    return (
        attributes
        | _latencies(timeline)
        | _finish_reasons(timeline)
        | account_attributes(timeline.account)
    )


def _latencies(timeline: RequestTimeline) -> Attributes:
    attributes: Attributes = {}
    if timeline.ttft_ns is not None:
        attributes["gen_ai.latency.time_to_first_token"] = timeline.ttft_ns / 1e9
        attributes["gen_ai.response.time_to_first_chunk"] = timeline.ttft_ns / 1e9
    for name, phase in (
        ("queue", Phase.QUEUE),
        ("model_prefill", Phase.PREFILL),
        ("model_decode", Phase.DECODE),
    ):
        spent_ns = timeline.phase_ns(phase)
        if spent_ns is not None:
            attributes[f"gen_ai.latency.time_in_{name}"] = spent_ns / 1e9
    prefill_ns, decode_ns = timeline.phase_ns(Phase.PREFILL), timeline.phase_ns(Phase.DECODE)
    if prefill_ns is not None and decode_ns is not None:
        attributes["gen_ai.latency.time_in_model_inference"] = (prefill_ns + decode_ns) / 1e9
    return attributes


def _finish_reasons(timeline: RequestTimeline) -> Attributes:
    reasons = [s.end_reason.value for s in timeline.sequences if s.end_reason is not None]
    return {"gen_ai.response.finish_reasons": tuple(reasons)} if reasons else {}


def phase_attributes(timeline: RequestTimeline, name: Phase) -> Attributes:
    """What is worth saying about one phase."""
    match name:
        case Phase.QUEUE:
            return _queue_attributes(timeline)
        case Phase.PREFILL:
            chunks = [chunk for s in timeline.sequences for chunk in s.chunks]
            return {
                "phasescope.prefill.chunks": len(chunks),
                "phasescope.prefill.tokens": sum(chunk.tokens for chunk in chunks),
                "phasescope.prefill.recompute_tokens": sum(c.recompute_tokens for c in chunks),
                "phasescope.prefill.cached_tokens": timeline.cached_tokens,
            }
        case Phase.DECODE:
            gaps = sorted(end - start for start, end in _gaps(timeline))
            attributes: Attributes = {"phasescope.decode.tokens": timeline.token_count}
            if gaps:
                attributes["phasescope.itl.p50_ms"] = gaps[len(gaps) // 2] / 1e6
                attributes["phasescope.itl.max_ms"] = gaps[-1] / 1e6
            return attributes
        case Phase.DETOKENIZE:
            return {"phasescope.detokenize.busy_ms": timeline.ended.detokenize_busy_ns / 1e6}
        case Phase.DELIVER:
            return {"phasescope.deliver.bytes": timeline.ended.bytes_sent}
        case Phase.PARSE | Phase.TOKENIZE:
            return {}


def _queue_attributes(timeline: RequestTimeline) -> Attributes:
    attributes: Attributes = {}
    held: dict[str, int] = {}
    for sequence in timeline.sequences:
        for wait in sequence.waits:
            held[wait.reason.value] = held.get(wait.reason.value, 0) + wait.end_ns - wait.start_ns
    for reason, spent_ns in held.items():
        attributes[f"phasescope.wait.{reason}_ms"] = spent_ns / 1e6
    return attributes


def _gaps(timeline: RequestTimeline) -> list[tuple[int, int]]:
    """(start, end) of each gap between successive tokens."""
    return [
        pair
        for sequence in timeline.sequences
        for pair in zip(sequence.token_ns, sequence.token_ns[1:], strict=False)
    ]


def _slow_gaps(timeline: RequestTimeline, phase: PhaseSpan, anchor: WallAnchor) -> list[Event]:
    """The slowest gaps, if they are more than twice the median: a bounded number of events."""
    gaps = [gap for gap in _gaps(timeline) if phase.start_ns <= gap[1] <= phase.end_ns]
    if len(gaps) < 3:
        return []
    lengths = sorted(end - start for start, end in gaps)
    bar_ns = _SLOW_FACTOR * lengths[len(lengths) // 2]
    slow = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:MAX_SLOW_GAPS]
    return [
        Event("slow_token", {"phasescope.gap_ms": (end - start) / 1e6}, anchor.to_unix_ns(end))
        for start, end in sorted(slow)
        if end - start > bar_ns
    ]
