"""Handles one generation request, from its headers to its last byte.

Exactly one RequestEnded is recorded, however the request ends, and every sequence that was sent to
the engine has ended or is cancelled by then. Generated tokens are counted as vLLM counts them:
every sampled token, including the one that ends the text.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Receive, Scope, Send

from service.engine.prompt_output import PromptOutput
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.errors import (
    ApiError,
    Interrupted,
    draining,
    error_of_end,
    internal,
    timed_out,
)
from service.gateway.generation.choice import Choice
from service.gateway.generation.delivery import Delivery
from service.gateway.generation.embeddings import pooled_output, respond_embeddings
from service.gateway.generation.ingest_task import IngestTask
from service.gateway.generation.output_processor import OutputProcessor
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.responses import ResponseHead
from service.gateway.generation.state import GatewayState
from service.gateway.generation.submitting import build_submits, prompt_ids, submit_all
from service.gateway.generation.tool_outcome import record_calls
from service.gateway.http.arrival import arrived_ns
from service.gateway.http.asgi import read_body
from service.gateway.http.security import check_priority, identify
from service.gateway.ingest.prompting import IngestResult
from service.gateway.ingest.schemas import GenerationRequest, Operation
from telemetry.facts.clock import unix_seconds
from telemetry.facts.reasons import EndReason, Outcome

log = logging.getLogger("phasescope.gateway")

_DEADLINE_SLACK_S = 10.0
_STUCK_WRITE_S = 2.0


class GenerationHandler:
    """Serves one request; one instance a request."""

    def __init__(
        self,
        state: GatewayState,
        operation: Operation,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._state = state
        self._operation = operation
        self._scope = scope
        self._receive = receive
        self.request_id: str = scope["state"]["request_id"]
        self.tenant = ""
        self._recorder = RequestRecorder(
            state.lane, state.clock, self.request_id, arrived_ns(scope), state.number
        )
        self._delivery = Delivery(send, self._recorder, self._on_blocked_write)
        self._outputs = OutputQueue(state.config.stream_buffer_tokens, self._on_full)
        self._ingest = IngestTask(state, operation, self._outputs)
        self._processor: OutputProcessor | None = None
        self._choices: list[Choice] = []
        self._task: asyncio.Task[None] | None = None
        self._slow_client_timer: asyncio.TimerHandle | None = None
        self._cancel_timer: asyncio.TimerHandle | None = None
        self._response_sent = False

    async def run(self) -> None:
        """Serve the request and record its end."""
        self._task = asyncio.current_task()
        reason = EndReason.INTERNAL
        error_type: str | None = "internal"
        try:
            reason = await self._serve()
            error_type = None if reason.outcome is Outcome.FINISHED else reason.value
        except ApiError as error:
            reason, error_type = error.reason, error.code or error.kind
            if reason.outcome is Outcome.CANCELLED:
                self._recorder.mark_detected()
            await self._delivery.send_error(error)
        except Interrupted as interruption:
            reason, error_type = interruption.reason, interruption.reason.value
            await self._report_interruption(reason)
        except asyncio.CancelledError:
            reason = self._outputs.interruption or EndReason.SHUTDOWN
            error_type = reason.value
            self._recorder.mark_detected()
            if self._outputs.interruption is None or self._task is None:
                raise
            self._task.uncancel()  # by our own timer: a write was stuck
            if not self._delivery.streaming:
                await self._report_interruption(reason)
        except Exception:
            log.exception("request %s failed", self.request_id, extra=self._recorder.about())
            await self._delivery.send_error(internal())
        finally:
            try:
                self._let_go(reason)
            finally:  # whatever else fails
                output_tokens = sum(choice.output_tokens for choice in self._choices)
                self._recorder.reasoned(choice.reasoning for choice in self._choices)
                self._recorder.ended(reason, error_type, output_tokens)

    def interrupt(self, reason: EndReason) -> None:
        """End the request from outside: free its blocks now, and tell the client if possible.

        A write that is stuck, because the client does not read, is cancelled after two seconds.
        """
        if self._response_sent:
            return  # only its record is not complete yet
        self._recorder.mark_detected()
        self._outputs.interrupt(reason)
        self._ingest.cancel()
        self._cancel_unfinished(reason)
        if self._task is not None and self._cancel_timer is None:
            loop = asyncio.get_running_loop()
            self._cancel_timer = loop.call_later(_STUCK_WRITE_S, self._task.cancel)

    def _let_go(self, reason: EndReason) -> None:
        """The request has ended: drop its timers, its sequences and what refers to it."""
        self._on_blocked_write(False)
        if self._cancel_timer is not None:
            self._cancel_timer.cancel()
        self._cancel_unfinished(reason)
        self._outputs.close()
        self._delivery.close()
        if self._processor is not None:
            self._processor.close()

    async def _serve(self) -> EndReason:
        """Serve until the end, and return its reason; every error is raised."""
        state = self._state
        refused, self.tenant = identify(state.config, self._scope)
        self._recorder.accepted(self._scope, self._operation.genai_name, self.tenant)
        if refused is not None:
            raise refused
        if state.drain.active:
            raise draining()
        body = await read_body(self._scope, self._receive, state.config, state.bodies)
        if state.drain.active:
            raise draining()
        watcher = asyncio.create_task(self._watch_disconnect())
        try:
            async with asyncio.timeout(state.config.request_timeout_s):
                request, result = await self._ingest.read(body, self._recorder)
            del body  # it may be large, and the answer may take long
            check_priority(state.config, self._scope, request.priority)
            timeout_s = _shorter_s(request.timeout_s, state.config.request_timeout_s)
            # the engine enforces the deadline; this is for an engine that does not answer
            async with asyncio.timeout(timeout_s and timeout_s + _DEADLINE_SLACK_S):
                return await self._generate(request, result, timeout_s)
        except TimeoutError:
            raise timed_out(EndReason.TIMEOUT) from None
        finally:
            watcher.cancel()

    async def _generate(
        self, request: GenerationRequest, result: IngestResult, timeout_s: float | None
    ) -> EndReason:
        deadline_ns = None
        if timeout_s is not None:
            deadline_ns = self._recorder.accepted_ns + int(timeout_s * 1e9)
        prompt_tokens = sum(prompt.tokens for prompt in result.prompts)
        sequences = len(result.prompts) * request.candidates
        self._outputs.limit = self._state.config.stream_buffer_tokens * sequences
        self._recorder.tokenized(prompt_tokens)
        submits = build_submits(
            self._state,
            request,
            result.prompts,
            self.tenant,
            deadline_ns,
            self._state.slo.of(self._recorder.slo_class),
            self._recorder.accepted_ns,
            self._pooled_output(request),
        )
        if request.embedding is not None:
            await respond_embeddings(
                self._state, self._recorder, self._outputs, self._delivery,
                request, result.prompts, submits, self._choices,
            )  # fmt: skip
            return EndReason.MAX_TOKENS
        await submit_all(
            self._state, self._recorder, self._outputs, submits, request, self._choices
        )
        head = ResponseHead(
            operation=self._operation,
            request_id=request.compat_options.answer_id or self.request_id,
            created_unix_s=unix_seconds(),
            model=request.model or self._state.model,
            with_logprobs=request.logprobs is not None,
            include_usage=request.include_usage,
            only_calls=request.tools is not None and request.tools.needed,
            compat_options=request.compat_options,
            prompt_ids=prompt_ids(request, result.prompts),
        )
        self._processor = OutputProcessor(
            state=self._state,
            recorder=self._recorder,
            outputs=self._outputs,
            delivery=self._delivery,
            request=request,
            head=head,
            choices=self._choices,
            prompts=result.prompts,
        )
        await self._processor.respond()
        await self._validate_output(request)
        return self._choices[0].end or EndReason.STOP_STRING

    def _pooled_output(self, request: GenerationRequest) -> PromptOutput | None:
        """What embeddings read of their inputs; None for other requests. Raises ApiError."""
        started = self._state.engine.started
        if request.embedding is None or started is None:
            return None
        return pooled_output(request.embedding, self._state.embedding, started)

    async def _validate_output(self, request: GenerationRequest) -> None:
        """Record whether constrained texts that the model ended satisfy their constraint, and what
        became of calls."""
        texts = [
            choice.full_text
            for choice in self._choices
            if choice.is_sent and choice.end is EndReason.EOS and choice.finish_reason == "stop"
        ]
        if request.tools is not None or (request.grammar is not None and texts):
            self._response_sent = True
            answered_ns = self._recorder.mark_answered()
            if request.tools is not None:
                await record_calls(
                    self._state, self._recorder, request.tools, self._choices, answered_ns
                )
        if request.grammar is not None and texts:
            self._recorder.output_valid = await self._state.ingest.validate_output(
                request.grammar, texts
            )

    async def _watch_disconnect(self) -> None:
        """Interrupt the request when its client disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(EndReason.DISCONNECT)

    async def _report_interruption(self, reason: EndReason) -> None:
        """Send the error of an interrupted request, unless its client has disconnected."""
        self._recorder.mark_detected()
        if reason is not EndReason.DISCONNECT:
            error = error_of_end(reason, self._state.retry_after_s)
            if error is not None:
                await self._delivery.send_error(error)

    def _on_full(self, full: bool) -> None:
        """The client reads more slowly than the engine generates: pause the sequences, or drop the
        stream."""
        if not self._delivery.streaming:
            return  # nothing is read yet: the response is being collected
        config = self._state.config
        if full and config.slow_client == "drop":
            asyncio.get_running_loop().call_soon(self.interrupt, EndReason.SLOW_CLIENT)
            return
        for choice in self._choices:
            if not choice.done:
                self._state.engine.pause(choice.seq_id, full)

    def _on_blocked_write(self, blocked: bool) -> None:
        """A write is blocked, or no longer: a client that reads nothing for long is dropped."""
        if self._slow_client_timer is not None:
            self._slow_client_timer.cancel()
            self._slow_client_timer = None
        if blocked:
            self._slow_client_timer = asyncio.get_running_loop().call_later(
                self._state.config.slow_client_timeout_s,
                self.interrupt,
                EndReason.SLOW_CLIENT,
            )

    def _cancel_unfinished(self, reason: EndReason) -> None:
        """Cancel the sequences that the engine still has of this request."""
        cancel_reason = reason if reason.outcome is Outcome.CANCELLED else EndReason.DISCONNECT
        for choice in self._choices:
            if not choice.done:
                self._state.engine.cancel(choice.seq_id, cancel_reason)


def _shorter_s(wished_s: float | None, allowed_s: float | None) -> float | None:
    """How long a request may take, of what its client and the operator say; None: for ever."""
    return min((one for one in (wished_s, allowed_s) if one is not None), default=None)
