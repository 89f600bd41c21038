"""One generation request from its headers to its last byte.

Whatever happens on the way, exactly one RequestEnded is recorded, and every sequence
that was handed to the engine has ended or been cancelled. Headers are sent only when the
engine has taken the request, so that a refusal is a real status. Generated tokens count
as vLLM counts them: every sampled token, the one that ends the text included.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Receive, Scope, Send

from service.gateway.choice import Choice
from service.gateway.errors import (
    ApiError,
    EngineUnavailable,
    error_of_end,
    internal,
    model_not_found,
    not_ready,
    timed_out,
)
from service.gateway.http import header, read_body, send_error, send_start, send_whole
from service.gateway.mailbox import Interrupted, Mailbox
from service.gateway.prompting import build_submits, encode_prompts
from service.gateway.responses import (
    DONE_EVENT,
    Operation,
    ResponseHead,
    delta_event,
    full_body,
    role_events,
    usage,
    usage_event,
)
from service.gateway.schemas import GenerationRequest, parse_chat, parse_completion
from service.gateway.security import key_error
from service.gateway.state import GatewayState
from telemetry.clock import unix_seconds
from telemetry.records import (
    EndReason,
    Outcome,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.traceparent import new_trace_id, parse_traceparent, parse_tracestate

log = logging.getLogger("phasescope.gateway")

_LAST_WORD_S = 1.0
_MAX_LABEL_CHARACTERS = 64


class GenerationEndpoint:
    """ASGI app of one of the two generation routes."""

    def __init__(self, state: GatewayState, operation: Operation) -> None:
        self._state = state
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Exchange(self._state, self._operation, scope, receive, send).run()


class Exchange:
    """The life of one request; one instance a request."""

    def __init__(
        self,
        state: GatewayState,
        operation: Operation,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._state = state
        self._clock = state.clock
        self._operation = operation
        self._scope = scope
        self._receive = receive
        self._raw_send = send
        self.request_id: str = scope["state"]["request_id"]
        self._tenant = _label(header(scope, b"x-tenant"))
        self._mailbox = Mailbox()
        self._choices: list[Choice] = []
        self._prompt_tokens = 0
        self._status = 0
        self._streaming = False
        self._bytes_sent = 0
        self._first_sent_ns: int | None = None
        self._detokenized_ns: int | None = None
        self._detokenize_busy_ns = 0
        self._detected_ns: int | None = None

    async def run(self) -> None:
        """Serve, and record the end whatever it is."""
        self._record_accepted()
        reason = EndReason.INTERNAL
        error_type: str | None = "internal"
        try:
            reason = await self._serve()
            error_type = None if reason.outcome is Outcome.FINISHED else reason.value
        except ApiError as error:
            reason, error_type = error.reason, error.code or error.kind
            await self._say(error)
        except Interrupted as interruption:
            reason, error_type = interruption.reason, interruption.reason.value
            self._noticed()
        except asyncio.CancelledError:
            reason, error_type = EndReason.SHUTDOWN, EndReason.SHUTDOWN.value
            self._noticed()
            raise
        except Exception:
            log.exception("request %s failed", self.request_id)
            await self._say(internal())
        finally:
            self._cancel_rest(reason)
            self._record_ended(reason, error_type)

    async def _serve(self) -> EndReason:
        """The good way through; everything else leaves by an exception."""
        state = self._state
        refused = key_error(
            state.config, self._scope["path"], header(self._scope, b"authorization")
        )
        if refused is not None:
            raise refused
        body = await read_body(self._scope, self._receive, state.config.max_body_bytes)
        request = self._parse(body)
        watcher = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(request.timeout_s or state.config.request_timeout_s):
                return await self._generate(request)
        except TimeoutError:
            self._noticed()
            raise timed_out() from None
        finally:
            watcher.cancel()

    def _parse(self, body: bytes) -> GenerationRequest:
        defaults = self._state.sampling_defaults
        match self._operation:
            case Operation.CHAT:
                request = parse_chat(body, defaults)
            case Operation.TEXT:
                request = parse_completion(body, defaults)
        if request.model is not None and request.model != self._state.model:
            raise model_not_found(request.model, self._state.model)
        self._record_parsed(request)
        return request

    async def _generate(self, request: GenerationRequest) -> EndReason:
        if not self._state.bridge.ready:
            raise not_ready()
        prompts = await encode_prompts(self._state, request)
        submits = build_submits(self._state, request, prompts, self._tenant)
        self._prompt_tokens = sum(len(prompt) for prompt in prompts)
        self._state.lane.append(
            RequestTokenized(self.request_id, self._clock.now_ns(), self._prompt_tokens)
        )
        for index, submit in enumerate(submits):
            now_ns = self._clock.now_ns()
            choice = Choice(index, submit.seq_id, self._state.tokenizer, request.stops)
            self._choices.append(choice)
            try:
                self._state.bridge.submit(submit, self._mailbox)
            except EngineUnavailable:
                raise not_ready() from None
            submitted = SequenceSubmitted(self.request_id, now_ns, submit.seq_id, index)
            self._state.lane.append(submitted)
        head = ResponseHead(
            operation=self._operation,
            request_id=self.request_id,
            created_unix_s=unix_seconds(),
            model=self._state.model,
            with_logprobs=request.logprobs is not None,
            include_usage=request.include_usage,
        )
        await self._advance()
        if request.stream:
            await self._stream(head)
        else:
            await self._answer(head)
        return self._choices[0].end or EndReason.STOP_STRING

    async def _advance(self) -> None:
        """Wait for news and work it in. Raises ApiError for an end that is an error."""
        emissions = await self._mailbox.take()
        begin_ns = self._clock.now_ns()
        by_id = {choice.seq_id: choice for choice in self._choices}
        for emission in emissions:
            choice = by_id[emission.seq_id]
            choice.accept(emission)
            if choice.stop_found and emission.end is None:
                self._state.bridge.cancel(choice.seq_id, EndReason.STOP_STRING)
        self._detokenized_ns = self._clock.now_ns()
        self._detokenize_busy_ns += self._detokenized_ns - begin_ns
        for emission in emissions:
            if emission.end is not None and emission.end is not EndReason.STOP_STRING:
                error = error_of_end(emission.end, self._state.retry_after_s)
                if error is not None:
                    raise error

    async def _stream(self, head: ResponseHead) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        self._streaming = True
        self._status = 200
        await send_start(self._raw_send, 200, "text/event-stream; charset=utf-8", headers)
        await self._send(role_events(head, self._choices) + self._new_events(head))
        while not all(choice.done for choice in self._choices):
            await self._advance()
            await self._send(self._new_events(head))
        tail = b""
        if head.include_usage:
            tail = usage_event(head, self._usage())
        await self._send(tail + DONE_EVENT, last=True)

    async def _answer(self, head: ResponseHead) -> None:
        while not all(choice.done for choice in self._choices):
            await self._advance()
        deltas = [choice.take() for choice in self._choices]
        body = full_body(head, self._choices, deltas, self._usage(), self._state.tokenizer)
        self._status = 200
        await send_whole(self._raw_send, 200, body)
        self._sent(len(body))

    def _new_events(self, head: ResponseHead) -> bytes:
        """All choices' news of one step in one write."""
        parts: list[bytes] = []
        for choice in self._choices:
            delta = choice.take()
            if not delta.is_empty:
                parts.append(delta_event(head, choice, delta, self._state.tokenizer))
        return b"".join(parts)

    async def _send(self, body: bytes, last: bool = False) -> None:
        if body or last:
            await self._raw_send(
                {"type": "http.response.body", "body": body, "more_body": not last}
            )
            self._sent(len(body))

    def _sent(self, count_bytes: int) -> None:
        self._bytes_sent += count_bytes
        if self._first_sent_ns is None:
            self._first_sent_ns = self._clock.now_ns()

    def _usage(self) -> dict[str, int]:
        return usage(self._prompt_tokens, self._output_tokens)

    @property
    def _output_tokens(self) -> int:
        return sum(choice.output_tokens for choice in self._choices)

    async def _say(self, error: ApiError) -> None:
        """Tell the client: by status if nothing was sent yet, else as the stream's last event."""
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                if self._streaming:
                    self._bytes_sent += len(error.body())
                    body = b"data: " + error.body() + b"\n\n"
                    await self._raw_send(
                        {"type": "http.response.body", "body": body, "more_body": False}
                    )
                elif self._status == 0:
                    self._status = error.status
                    await send_error(self._raw_send, error)
        except (TimeoutError, OSError, RuntimeError):
            log.debug("request %s: the error could not be delivered", self.request_id)

    async def _watch(self) -> None:
        """Notice that the client went away, whatever the request is doing."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._noticed()
        self._mailbox.interrupt(EndReason.DISCONNECT)

    def _noticed(self) -> None:
        if self._detected_ns is None:
            self._detected_ns = self._clock.now_ns()

    def _cancel_rest(self, reason: EndReason) -> None:
        """Free what the engine still holds for this request."""
        word = reason if reason.outcome is Outcome.CANCELLED else EndReason.DISCONNECT
        for choice in self._choices:
            if not choice.done:
                self._state.bridge.cancel(choice.seq_id, word)

    def _record_accepted(self) -> None:
        parent = parse_traceparent(header(self._scope, b"traceparent"))
        self._state.lane.append(
            RequestAccepted(
                request_id=self.request_id,
                at_ns=self._clock.now_ns(),
                trace_id=parent.trace_id if parent else new_trace_id(),
                parent_span_id=parent.span_id if parent else None,
                trace_sampled=parent.sampled if parent else None,
                trace_state=parse_tracestate(header(self._scope, b"tracestate"))
                if parent
                else None,
                route=self._scope["path"],
                operation=self._operation.value,
                tenant=self._tenant,
                slo_class=_label(header(self._scope, b"x-slo-class")),
            )
        )

    def _record_parsed(self, request: GenerationRequest) -> None:
        self._state.lane.append(
            RequestParsed(
                request_id=self.request_id,
                at_ns=self._clock.now_ns(),
                model=self._state.model,
                stream=request.stream,
                choices=request.choices * len(request.prompts or (None,)),
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                seed=request.seed,
            )
        )

    def _record_ended(self, reason: EndReason, error_type: str | None) -> None:
        self._state.lane.append(
            RequestEnded(
                request_id=self.request_id,
                at_ns=self._clock.now_ns(),
                reason=reason,
                status=self._status,
                error_type=error_type,
                output_tokens=self._output_tokens,
                first_sent_ns=self._first_sent_ns,
                detokenized_ns=self._detokenized_ns,
                detokenize_busy_ns=self._detokenize_busy_ns,
                bytes_sent=self._bytes_sent,
                detected_ns=self._detected_ns,
            )
        )


def _label(value: str | None) -> str:
    """A header that becomes a label: short and printable, or absent."""
    text = (value or "").strip()
    if len(text) > _MAX_LABEL_CHARACTERS or not text.isprintable():
        return ""
    return text
