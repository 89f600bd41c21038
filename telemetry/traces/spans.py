"""Builds the tree of OpenTelemetry spans of a timeline, after the request has ended.

Spans are built as finished `ReadableSpan`s with ids and times from the timeline, so the hot path
has no span object. One wall anchor serves a whole trace, so that a step of the wall clock cannot
give a span a negative length. No span carries a prompt or an output.

Status: ERROR for failed requests only. Rejected and cancelled requests are no errors of the server;
`error.type` and `phasescope.outcome` name them. Finished ones are unset.

All lists are bounded here, below the limits of 128 attributes, events and links that OpenTelemetry
SDKs and many receivers have: those would cut them silently. What is cut here is counted on the
span, as `phasescope.cut.chunks` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from telemetry.facts.base import SpanEvent
from telemetry.facts.clock import WallAnchor
from telemetry.facts.reasons import Outcome, Phase, WaitReason
from telemetry.requests.account import Part
from telemetry.requests.engine_span import all_unseen
from telemetry.requests.phases import ChunkSpan, PhaseSpan, PreemptedSpan, RequestTimeline, WaitSpan
from telemetry.traces.link_targets import (
    MAX_CHUNKS,
    LinkTargets,
    chunk_span_id,
    chunks_in,
    phase_span_id,
    root_span_id,
)
from telemetry.traces.remote_spans import kv_children, remote_spans
from telemetry.traces.span_attributes import (
    cut,
    phase_attributes,
    root_attributes,
    slow_gaps,
    within_limits,
)
from telemetry.traces.stall_spans import Attributes, stall_attributes, stall_links
from telemetry.traces.tool_spans import tool_attributes, tool_link

SCOPE = InstrumentationScope("phasescope", "1")
MAX_SLOW_GAPS = 16
MAX_OWN_WAITS = 64
MAX_PREEMPTED = 64
_OWN_WAITS = {
    WaitReason.GRAMMAR: "grammar.compile",
    WaitReason.ADAPTER: "adapter.load",
    WaitReason.CLIENT_PAUSE: "client.pause",
    WaitReason.REMOTE_KV: "kv.wait",
}


class SpanBuilder:
    """Builds the span trees of timelines under one resource. `targets` are the spans that links may
    point to; `server` is the address and port that requests come to."""

    def __init__(
        self,
        resource: Resource,
        new_span_id: Callable[[], str],
        server: tuple[str, int | None] | None = None,
    ) -> None:
        self._resource = resource
        self._new_span_id = new_span_id
        self.targets = LinkTargets()
        self._server: Attributes = {}
        if server is not None:
            self._server = {"server.address": server[0]}
            if server[1] is not None:
                self._server["server.port"] = server[1]

    def build(
        self,
        timeline: RequestTimeline,
        anchor: WallAnchor,
        extra: Attributes | None = None,
        span_events: Sequence[SpanEvent] = (),
    ) -> list[ReadableSpan]:
        """The root, then the phases in order, each followed by its children. `extra` and
        `span_events` are added to the root."""
        tree = _Tree(self._resource, self._new_span_id, timeline, anchor, self.targets)
        root = tree.root({**self._server, **(extra or {})}, span_events)
        spans = [root]
        for phase in timeline.phases:
            span = tree.phase(phase, root)
            spans.append(span)
            spans += tree.children(phase, span)
        return [*spans, *tree.remote(root), *tree.tools(root)]


class _Tree:
    """The spans of one trace while they are built."""

    def __init__(
        self,
        resource: Resource,
        new_span_id: Callable[[], str],
        timeline: RequestTimeline,
        anchor: WallAnchor,
        targets: LinkTargets,
    ) -> None:
        self._targets = targets
        self._preemptions: list[tuple[PreemptedSpan, ReadableSpan]] = []
        self._resource = resource
        self._new_span_id = new_span_id
        self._timeline = timeline
        self._anchor = anchor
        accepted = timeline.accepted
        self._trace_id = int(accepted.trace_id, 16)
        self._root_id = root_span_id(timeline)
        state = accepted.trace_state
        self._state = TraceState.from_header([state]) if state else None

    def root(self, extra: Attributes, span_events: Sequence[SpanEvent] = ()) -> ReadableSpan:
        """The span of the request. If the caller does not sample, its span does not exist: the root
        then has no parent and names the caller's span in an attribute."""
        timeline = self._timeline
        accepted, parsed = timeline.accepted, timeline.parsed
        attributes = root_attributes(timeline) | extra
        parent = None
        if accepted.parent_span_id is not None and accepted.trace_sampled is not False:
            parent = self._context(int(accepted.parent_span_id, 16), remote=True)
        elif accepted.parent_span_id is not None:
            attributes["phasescope.unsampled_parent"] = accepted.parent_span_id
        name = accepted.operation if parsed is None else f"{accepted.operation} {parsed.model}"
        status = Status(StatusCode.UNSET)
        if timeline.outcome is Outcome.FAILED:
            status = Status(StatusCode.ERROR, timeline.ended.error_type)
        return self._span(
            name,
            parent,
            accepted.at_ns,
            timeline.ended.at_ns,
            attributes,
            [
                Event(one.name, dict(one.attributes), self._anchor.to_unix_ns(one.at_ns))
                for one in span_events
            ],
            kind=SpanKind.SERVER,
            status=status,
            span_id=self._root_id,
        )

    def tools(self, root: ReadableSpan) -> list[ReadableSpan]:
        """The time between calls of functions and their results, which this request brought. It was
        over when the request arrived, so these spans stand beside the root, under the caller's span
        if there is one; each is linked to the request that made the calls."""
        return [
            self._span(
                "tool",
                root.parent,
                begin_ns,
                end_ns,
                tool_attributes(call),
                links=(tool_link(call),),
            )
            for begin_ns, end_ns, call in self._timeline.tool_waits
        ]

    def remote(self, root: ReadableSpan) -> list[ReadableSpan]:
        """The time at an engine node, and in it the way there, the node and the way back; and the
        waits for KV of other engines."""
        found: list[ReadableSpan] = []
        for one in remote_spans(self._timeline):
            parent = found[0] if found else root
            stamps = (one.begin_ns, one.end_ns)
            found.append(self._span(one.name, parent.context, *stamps, one.attributes))
        for one in kv_children(self._timeline):
            stamps = (one.begin_ns, one.end_ns)
            found.append(self._span(one.name, root.context, *stamps, one.attributes))
        return found

    def phase(self, phase: PhaseSpan, root: ReadableSpan) -> ReadableSpan:
        timeline = self._timeline
        attributes = phase_attributes(timeline, phase.name)
        if timeline.truncated and phase is timeline.phases[-1]:
            attributes["phasescope.truncated"] = True
        events: list[Event] = []
        if phase.name is Phase.DECODE:
            slow = slow_gaps(timeline, phase)
            events = [self._slow_token(*gap) for gap in sorted(slow[:MAX_SLOW_GAPS])]
            attributes |= cut("slow_tokens", slow, MAX_SLOW_GAPS)
        attributes |= cut("chunks", chunks_in(timeline, phase), MAX_CHUNKS)
        attributes |= cut("preempted", self._preempted_in(phase), MAX_PREEMPTED)
        attributes |= cut("holds", self._waits_in(phase), MAX_OWN_WAITS)
        return self._span(
            phase.name.value,
            root.context,
            phase.start_ns,
            phase.end_ns,
            attributes,
            events,
            span_id=phase_span_id(timeline, phase),
        )

    def children(self, phase: PhaseSpan, parent: ReadableSpan) -> list[ReadableSpan]:
        """Own waits, what is not observed, preemptions, stalls and prefill chunks that begin within
        the phase."""
        spans, first = self._own_waits_in(phase, parent), len(self._preemptions)
        spans += self._unseen_in(phase, parent)
        for gap in self._preempted_in(phase)[:MAX_PREEMPTED]:
            end_ns = min(gap.end_ns, phase.end_ns)
            attributes: Attributes = {
                "phasescope.step_id": gap.step_id,
                "phasescope.seq_id": gap.seq_id,
            }
            span = self._span("preempted", parent.context, gap.start_ns, end_ns, attributes)
            spans.append(span)
            self._preemptions.append((gap, span))
        spans += self._stalls_in(phase, parent)
        for chunk in chunks_in(self._timeline, phase)[:MAX_CHUNKS]:
            preemptions = self._preemptions[first:]
            holder = next((span for gap, span in preemptions if _covers(gap, chunk)), parent)
            spans.append(self._chunk(chunk, holder, phase))
        return spans

    def _own_waits_in(self, phase: PhaseSpan, parent: ReadableSpan) -> list[ReadableSpan]:
        """Spans of waits for the sequence's own grammar, adapter or client."""
        found: list[ReadableSpan] = []
        for seq_id, wait in self._waits_in(phase)[:MAX_OWN_WAITS]:
            attributes: Attributes = {"phasescope.seq_id": seq_id}
            name, end_ns = _OWN_WAITS[wait.reason], min(wait.end_ns, phase.end_ns)
            found.append(self._span(name, parent.context, wait.start_ns, end_ns, attributes))
        return found

    def _unseen_in(self, phase: PhaseSpan, parent: ReadableSpan) -> list[ReadableSpan]:
        """What nothing observed of the phase, as the ledger has it."""
        return [
            self._span(
                Part.NOT_OBSERVED.value,
                parent.context,
                one.start_ns,
                min(one.end_ns, phase.end_ns),
                {"phasescope.reason": one.reason.value},
            )
            for one in all_unseen(self._timeline)
            if _begins_in(one.start_ns, phase)
        ]

    def _waits_in(self, phase: PhaseSpan) -> list[tuple[int, WaitSpan]]:
        return [
            (sequence.seq_id, wait)
            for sequence in self._timeline.sequences
            for wait in sequence.waits
            if wait.reason in _OWN_WAITS and _begins_in(wait.start_ns, phase)
            if wait.reason is not WaitReason.REMOTE_KV or sequence.kv is None
        ]

    def _preempted_in(self, phase: PhaseSpan) -> list[PreemptedSpan]:
        return [
            gap
            for sequence in self._timeline.sequences
            for gap in sequence.preempted
            if _begins_in(gap.start_ns, phase)
        ]

    def _stalls_in(self, phase: PhaseSpan, parent: ReadableSpan) -> list[ReadableSpan]:
        """A span for each stall, linked to the culprit's span."""
        account = self._timeline.account
        if account is None:
            return []
        found: list[ReadableSpan] = []
        for stall in account.stalls:
            if _begins_in(stall.begin_ns, phase):
                end_ns = min(stall.end_ns, phase.end_ns)
                found.append(
                    self._span(
                        "stall",
                        parent.context,
                        stall.begin_ns,
                        end_ns,
                        stall_attributes(stall),
                        links=stall_links(stall, self._targets, self._preemptions),
                    )
                )
        return found

    def _slow_token(self, start_ns: int, end_ns: int) -> Event:
        attributes = {"phasescope.gap_ms": (end_ns - start_ns) / 1e6}
        return Event("slow_token", attributes, self._anchor.to_unix_ns(end_ns))

    def _chunk(self, chunk: ChunkSpan, holder: ReadableSpan, phase: PhaseSpan) -> ReadableSpan:
        attributes: Attributes = {
            "phasescope.step_id": chunk.step_id,
            "phasescope.seq_id": chunk.seq_id,
            "phasescope.chunk.tokens": chunk.tokens,
            "phasescope.chunk.context_tokens": chunk.context_tokens,
            "phasescope.chunk.recompute_tokens": chunk.recompute_tokens,
        }
        if chunk.target_ns is not None:
            attributes["phasescope.step.target_ms"] = chunk.target_ns / 1e6
        end_ns = min(chunk.end_ns, phase.end_ns)
        span_id = chunk_span_id(self._root_id, chunk.seq_id, chunk.step_id)
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
        attributes, events = within_limits(attributes, events)
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


def _covers(gap: PreemptedSpan, chunk: ChunkSpan) -> bool:
    return gap.seq_id == chunk.seq_id and gap.start_ns <= chunk.start_ns < gap.end_ns
