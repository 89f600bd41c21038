"""Writes the facts of one request: what the gateway saw, and when.

Whatever happens, exactly one RequestEnded follows one RequestAccepted.
"""

from __future__ import annotations

from starlette.types import Scope

from service.engine.inbox import Submit
from service.engine.plan import GrammarKind
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
from telemetry.traces.traceparent import new_trace_id, parse_traceparent, parse_tracestate


class Witness:
    """One instance a request; the only writer of its stamps."""

    def __init__(
        self, lane: Lane, clock: Clock, request_id: str, arrived_ns: int | None = None
    ) -> None:
        """`arrived_ns` is when the request was in the socket, if that is known."""
        self.request_id = request_id
        self._read_ns = clock.now_ns()
        self.accepted_ns = self._read_ns if arrived_ns is None else min(arrived_ns, self._read_ns)
        self.status = 0
        self.output_valid: bool | None = None
        self._lane = lane
        self._clock = clock
        self._bytes_sent = 0
        self._first_sent_ns: int | None = None
        self._detokenized_ns: int | None = None
        self._detokenize_busy_ns = 0
        self._detected_ns: int | None = None
        self._answered_ns: int | None = None

    def accepted(self, scope: Scope, operation: str, tenant: str) -> None:
        parent = parse_traceparent(header(scope, b"traceparent"))
        state = parse_tracestate(header(scope, b"tracestate")) if parent else None
        self._lane.append(
            RequestAccepted(
                request_id=self.request_id,
                at_ns=self.accepted_ns,
                read_ns=self._read_ns,
                trace_id=parent.trace_id if parent else new_trace_id(),
                parent_span_id=parent.span_id if parent else None,
                trace_sampled=parent.sampled if parent else None,
                trace_state=state,
                route=scope["path"],
                operation=operation,
                tenant=tenant,
                slo_class=label(header(scope, b"x-slo-class")),
            )
        )

    def parsed(self, request: GenerationRequest, model: str, at_ns: int, waited_ns: int) -> None:
        self._lane.append(
            RequestParsed(
                request_id=self.request_id,
                at_ns=at_ns,
                model=model,
                stream=request.stream,
                choices=request.choices * len(request.prompts or (None,)),
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                seed=request.seed,
                presence_penalty=request.presence_penalty,
                frequency_penalty=request.frequency_penalty,
                output_type="json" if _must_be_json(request) else "text",
                waited_ns=waited_ns,
            )
        )

    def tokenized(self, prompt_tokens: int) -> None:
        now_ns = self._clock.now_ns()
        self._lane.append(RequestTokenized(self.request_id, now_ns, prompt_tokens))

    def submitted(self, submit: Submit, choice: int, at_ns: int) -> None:
        """The engine has the sequence. `at_ns` was read before it got it: its own facts come
        after this one."""
        self._lane.append(SequenceSubmitted(self.request_id, at_ns, submit.seq_id, choice))

    def detokenized(self, begin_ns: int) -> None:
        """Tokens that had arrived at `begin_ns` are text now."""
        self._detokenized_ns = self._clock.now_ns()
        self._detokenize_busy_ns += self._detokenized_ns - begin_ns

    def sent(self, count_bytes: int, is_content: bool = True) -> None:
        """So many bytes are with the socket; comments and errors are no content."""
        self._bytes_sent += count_bytes
        if is_content and self._first_sent_ns is None:
            self._first_sent_ns = self._clock.now_ns()

    def noticed(self) -> None:
        """A disconnect, a delete or a deadline came to light; the first time counts."""
        if self._detected_ns is None:
            self._detected_ns = self._clock.now_ns()

    def answered(self) -> None:
        """The last byte is out, which is the end; what is recorded later does not move it."""
        self._answered_ns = self._clock.now_ns()

    def ended(self, reason: EndReason, error_type: str | None, output_tokens: int) -> None:
        self._lane.append(self._end(reason, error_type, output_tokens))

    def as_if_finished(self, output_tokens: int) -> RequestEnded:
        """The terminal fact that a good end would have now; it is not recorded."""
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
        )


def _must_be_json(request: GenerationRequest) -> bool:
    kinds = (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA)
    return request.grammar is not None and request.grammar.kind in kinds
