"""Records the facts of one request that the gateway observes.

Exactly one RequestEnded follows one RequestAccepted, however the request ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from service.engine.inbox import Submit
from service.engine.plan import GrammarKind
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.generation.reasoning_text import ReasoningText
from service.gateway.http.asgi import header, label
from service.gateway.ingest.schemas import GenerationRequest
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import (
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.facts.tool_records import ReturnedCall, ToolCallsMade, ToolResultsReturned
from telemetry.facts.traceparent import (
    new_trace_id,
    parse_traceparent,
    parse_tracestate,
    request_span_id,
)


class RequestRecorder:
    """One instance a request; owns its timestamps."""

    def __init__(
        self,
        lane: Lane,
        clock: Clock,
        request_id: str,
        arrived_ns: int | None = None,
        gateway: int = 0,
    ) -> None:
        """`arrived_ns` is when the request arrived in the socket, if that is known; of several
        gateway processes, `gateway` is the number of this one."""
        self.request_id = request_id
        self._read_ns = clock.now_ns()
        self.accepted_ns = self._read_ns if arrived_ns is None else min(arrived_ns, self._read_ns)
        self.status = 0
        self._trace_id: str | None = None
        self.slo_class = ""
        self._asked = ("", "")
        self._sampled: bool | None = None
        self.output_valid: bool | None = None
        self._gateway = gateway
        self._lane = lane
        self._clock = clock
        self._reasoning_tokens = 0
        self._reasonings_cut = 0
        self._bytes_sent = 0
        self._first_sent_ns: int | None = None
        self._detokenized_ns: int | None = None
        self._detokenize_busy_ns = 0
        self._detected_ns: int | None = None
        self._answered_ns: int | None = None

    def accepted(self, scope: Scope, operation: str, tenant: str) -> None:
        parent = parse_traceparent(header(scope, b"traceparent"))
        state = parse_tracestate(header(scope, b"tracestate")) if parent else None
        self.slo_class = label(header(scope, b"x-slo-class"))
        self._trace_id = parent.trace_id if parent else new_trace_id()
        self._sampled = parent.sampled if parent else None
        self._asked = (scope["path"], operation)
        self._lane.append(
            RequestAccepted(
                request_id=self.request_id,
                at_ns=self.accepted_ns,
                read_ns=self._read_ns,
                trace_id=self._trace_id,
                parent_span_id=parent.span_id if parent else None,
                trace_sampled=parent.sampled if parent else None,
                trace_state=state,
                route=scope["path"],
                operation=operation,
                tenant=tenant,
                slo_class=self.slo_class,
                gateway=self._gateway,
            )
        )

    @property
    def span(self) -> tuple[str, str]:
        """The request's trace and root span, as 32 and 16 hex digits."""
        assert self._trace_id is not None, "before accepted"
        span_id = request_span_id(self._trace_id, self.request_id, self.accepted_ns)
        return self._trace_id, f"{span_id:016x}"

    def for_engine(
        self, sequence: int, sequences: int, own_prompt_tokens: int = 0
    ) -> RequestContext:
        """What an engine elsewhere records of the request."""
        route, operation = self._asked
        return RequestContext(
            self.request_id,
            *self.span,
            self._sampled,
            self.slo_class,
            route,
            operation,
            sequence,
            sequences,
            own_prompt_tokens,
        )

    def about(self) -> dict[str, str]:
        """The request, its trace and its root span, for a log record's `extra`."""
        found = {"request_id": self.request_id}
        if self._trace_id is not None:
            found |= zip(("trace_id", "span_id"), self.span, strict=True)
        return found

    def parsed(self, request: GenerationRequest, model: str, at_ns: int, waited_ns: int) -> None:
        samples = request.embedding is None
        self._lane.append(
            RequestParsed(
                request_id=self.request_id,
                at_ns=at_ns,
                model=model,
                stream=request.stream,
                choices=request.candidates * len(request.prompts or (None,)),
                max_tokens=request.max_tokens,
                temperature=request.temperature if samples else None,
                top_p=request.top_p if samples else None,
                top_k=request.top_k if samples else None,
                seed=request.seed,
                presence_penalty=request.presence_penalty,
                frequency_penalty=request.frequency_penalty,
                output_type="json" if _must_be_json(request) else "text",
                waited_ns=waited_ns,
            )
        )

    def returned(self, at_ns: int, calls: list[ReturnedCall], unknown: int) -> None:
        """The request brings results of calls."""
        self._lane.append(ToolResultsReturned(self.request_id, at_ns, tuple(calls), unknown))

    def called(self, fact: ToolCallsMade) -> None:
        """The calls in the answer have been checked."""
        self._lane.append(fact)

    def tokenized(self, prompt_tokens: int) -> None:
        now_ns = self._clock.now_ns()
        self._lane.append(RequestTokenized(self.request_id, now_ns, prompt_tokens))

    def submitted(self, submit: Submit, choice: int, at_ns: int) -> None:
        """A sequence was sent to the engine. `at_ns` was read before that, so that the engine's
        facts about the sequence come after this one."""
        self._lane.append(SequenceSubmitted(self.request_id, at_ns, submit.seq_id, choice))

    def detokenized(self, begin_ns: int) -> None:
        """Tokens have been detokenized; `begin_ns` is when that began."""
        self._detokenized_ns = self._clock.now_ns()
        self._detokenize_busy_ns += self._detokenized_ns - begin_ns

    def sent(self, count_bytes: int, is_content: bool = True) -> None:
        """Bytes were written to the socket; `is_content` is False for comments and errors."""
        self._bytes_sent += count_bytes
        if is_content and self._first_sent_ns is None:
            self._first_sent_ns = self._clock.now_ns()

    def mark_detected(self) -> None:
        """The gateway has detected a disconnect, a delete or a deadline; the first call counts."""
        if self._detected_ns is None:
            self._detected_ns = self._clock.now_ns()

    def mark_answered(self) -> int:
        """The last byte was sent: this is the time of the end, whenever that is recorded."""
        self._answered_ns = self._clock.now_ns()
        return self._answered_ns

    def reasoned(self, reasonings: Iterable[ReasoningText | None]) -> None:
        """What the choices have reasoned, of those that can."""
        found = [one for one in reasonings if one is not None]
        self._reasoning_tokens = sum(one.tokens for one in found)
        self._reasonings_cut = sum(one.was_cut for one in found)

    def ended(self, reason: EndReason, error_type: str | None, output_tokens: int) -> None:
        self._lane.append(self._end(reason, error_type, output_tokens))

    def preview_finished(self, output_tokens: int) -> RequestEnded:
        """The RequestEnded of a request that would finish now; it is not recorded."""
        return self._end(EndReason.EOS, None, output_tokens)

    def _end(self, reason: EndReason, error_type: str | None, output_tokens: int) -> RequestEnded:
        return RequestEnded(
            request_id=self.request_id,
            at_ns=self._clock.now_ns() if self._answered_ns is None else self._answered_ns,
            reason=reason,
            status=self.status,
            error_type=error_type,
            output_tokens=output_tokens,
            first_sent_ns=self._first_sent_ns,
            detokenized_ns=self._detokenized_ns,
            detokenize_busy_ns=self._detokenize_busy_ns,
            bytes_sent=self._bytes_sent,
            detected_ns=self._detected_ns,
            output_valid=self.output_valid,
            reasoning_tokens=self._reasoning_tokens,
            reasonings_cut=self._reasonings_cut,
        )


def _must_be_json(request: GenerationRequest) -> bool:
    kinds = (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA)
    return request.grammar is not None and request.grammar.kind in kinds
