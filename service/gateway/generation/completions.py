"""One generation request from its headers to its last byte.

Whatever happens on the way, exactly one RequestEnded is recorded, and every sequence
that was handed to the engine has ended or been cancelled. Headers of a stream are sent when the
engine has taken all of its sequences and can refuse none any more, so that a refusal is a real
status and a wait in the queue is no silence. Generated tokens count as vLLM counts them: every
sampled token, the one that ends the text included.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.types import Receive, Scope, Send

from service.engine.plan import Emission
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
from service.gateway.generation.intake import Intake
from service.gateway.generation.request_recorder import Witness
from service.gateway.generation.responses import (
    ChunkWriter,
    ResponseHead,
    full_body,
    last_event,
    role_events,
    usage,
)
from service.gateway.generation.state import GatewayState
from service.gateway.generation.submitting import build_submits, submit_all
from service.gateway.http.arrival import arrived_ns
from service.gateway.http.asgi import read_body
from service.gateway.http.security import check_priority, identify
from service.gateway.ingest.prompting import Reading
from service.gateway.ingest.schemas import GenerationRequest, Operation
from telemetry.facts.clock import unix_seconds
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.requests.timings import RequestTimings

log = logging.getLogger("phasescope.gateway")

_DEADLINE_SLACK_S = 10.0
_STUCK_WRITE_S = 2.0


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
        self._operation = operation
        self._scope = scope
        self._receive = receive
        self.request_id: str = scope["state"]["request_id"]
        self.tenant = ""
        self._witness = Witness(state.lane, state.clock, self.request_id, arrived_ns(scope))
        self._delivery = Delivery(send, self._witness, self._write_waits)
        self._outputs = OutputQueue(state.config.stream_buffer_tokens, self._on_full)
        self._choices: list[Choice] = []
        self._by_id: dict[int, Choice] = {}
        self._failure: ApiError | None = None
        self._writer: ChunkWriter
        self._prompt_tokens = 0
        self._choices_a_prompt = 1
        self._task: asyncio.Task[None] | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._guard: asyncio.TimerHandle | None = None
        self._intake = Intake(state, operation, self._outputs)
        self._answered = False

    async def run(self) -> None:
        """Serve, and record the end whatever it is."""
        self._task = asyncio.current_task()
        reason = EndReason.INTERNAL
        error_type: str | None = "internal"
        try:
            reason = await self._serve()
            error_type = None if reason.outcome is Outcome.FINISHED else reason.value
        except ApiError as error:
            reason, error_type = error.reason, error.code or error.kind
            if reason.outcome is Outcome.CANCELLED:
                self._witness.noticed()
            await self._delivery.last_word(error)
        except Interrupted as interruption:
            reason, error_type = interruption.reason, interruption.reason.value
            await self._explain(reason)
        except asyncio.CancelledError:
            reason = self._outputs.interruption or EndReason.SHUTDOWN
            error_type = reason.value
            self._witness.noticed()
            if self._outputs.interruption is None or self._task is None:
                raise
            self._task.uncancel()  # our own guard: something was stuck
            if not self._delivery.streaming:
                await self._explain(reason)
        except Exception:
            log.exception("request %s failed", self.request_id)
            await self._delivery.last_word(internal())
        finally:
            self._write_waits(False)
            if self._guard is not None:
                self._guard.cancel()
            self._cancel_rest(reason)
            self._outputs.close()
            self._delivery.close()
            self._failure = None  # its traceback refers to this request
            self._witness.ended(reason, error_type, self._output_tokens)

    def interrupt(self, reason: EndReason) -> None:
        """End the request from outside: free its blocks now, tell the client if it listens.

        A write that is stuck, because the client reads nothing, is given up after a moment.
        """
        if self._answered:
            return  # only its record is not complete yet
        self._witness.noticed()
        self._outputs.interrupt(reason)
        self._intake.stop()
        self._cancel_rest(reason)
        if self._task is not None and self._guard is None:
            loop = asyncio.get_running_loop()
            self._guard = loop.call_later(_STUCK_WRITE_S, self._task.cancel)

    async def _serve(self) -> EndReason:
        """The good way through; everything else leaves by an exception."""
        state = self._state
        refused, self.tenant = identify(state.config, self._scope)
        self._witness.accepted(self._scope, self._operation.value, self.tenant)
        if refused is not None:
            raise refused
        if state.drain.active:
            raise draining()
        body = await read_body(self._scope, self._receive, state.config)
        if state.drain.active:
            raise draining()
        watcher = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(state.config.request_timeout_s):
                request, reading = await self._intake.read(body, self._witness)
            check_priority(state.config, self._scope, request.priority)
            timeout_s = request.timeout_s or state.config.request_timeout_s
            # the engine keeps the deadline; this is for the case that it does not answer
            async with asyncio.timeout(timeout_s and timeout_s + _DEADLINE_SLACK_S):
                return await self._generate(request, reading, timeout_s)
        except TimeoutError:
            raise timed_out(EndReason.TIMEOUT) from None
        finally:
            watcher.cancel()

    async def _generate(
        self, request: GenerationRequest, reading: Reading, timeout_s: float | None
    ) -> EndReason:
        deadline_ns = None
        if timeout_s is not None:
            deadline_ns = self._witness.accepted_ns + int(timeout_s * 1e9)
        self._prompt_tokens = sum(prompt.tokens for prompt in reading.prompts)
        self._choices_a_prompt = request.choices
        sequences = len(reading.prompts) * request.choices
        self._outputs.limit = self._state.config.stream_buffer_tokens * sequences
        self._witness.tokenized(self._prompt_tokens)
        submits = build_submits(self._state, request, reading.prompts, self.tenant, deadline_ns)
        await submit_all(
            self._state, self._witness, self._outputs, submits, request.stops, self._choices
        )
        head = ResponseHead(
            operation=self._operation,
            request_id=self.request_id,
            created_unix_s=unix_seconds(),
            model=self._state.model,
            with_logprobs=request.logprobs is not None,
            include_usage=request.include_usage,
        )
        self._by_id = {choice.seq_id: choice for choice in self._choices}
        self._writer = ChunkWriter(head, self._state.tokenizer)
        if request.stream:
            await self._stream(head, request)
        else:
            await self._answer(head, request)
        await self._judge(request)
        return self._choices[0].end or EndReason.STOP_STRING

    async def _advance(self) -> None:
        """Wait for news and work it in. Raises ApiError for an end that is an error."""
        self._accept(await self._outputs.get())
        if self._failure is not None:
            raise self._failure

    def _accept(self, emissions: list[Emission]) -> None:
        """Tokens become text; `_failure` is set by an end that is an error."""
        begin_ns = self._state.clock.now_ns()
        for emission in emissions:
            choice = self._by_id[emission.seq_id]
            choice.accept(emission)
            if choice.stop_found and emission.end is None:
                self._state.engine.cancel(choice.seq_id, EndReason.STOP_STRING)
        self._witness.detokenized(begin_ns)
        for emission in emissions:
            if emission.end is not None and emission.end is not EndReason.STOP_STRING:
                error = error_of_end(emission.end, self._state.retry_after_s, emission.detail)
                self._failure = self._failure or error

    def _take_flow(self, emissions: list[Emission]) -> bool:
        """Tokens of one step, while nobody has to wait for anything; whether that goes on.

        It is written when all streams' tokens are text: a client process that the first write
        wakes then finds the others there too.
        """
        self._accept(emissions)
        if self._failure is not None:
            return False
        if self._delivery.streaming:
            deltas = self._new_events()
            if deltas:
                self._state.engine.write_after_flush(
                    self._write_flow, self._delivery.framed(deltas)
                )
        return not all(choice.done for choice in self._choices)

    def _write_flow(self, body: bytes) -> None:
        try:
            if not self._delivery.write(body):
                self._outputs.stop_pushing()
        except Exception as error:
            self._outputs.fail(error)

    async def _until_done(self) -> None:
        """Work everything in, and write it if this is a stream."""
        while not all(choice.done for choice in self._choices):
            await self._outputs.push_to(self._take_flow)
            if self._failure is not None:
                raise self._failure
            await self._delivery.finish_write()
            if not self._outputs.is_empty:
                await self._advance()
                if self._delivery.streaming:
                    await self._delivery.events(self._new_events())

    async def _stream(self, head: ResponseHead, request: GenerationRequest) -> None:
        while not await self._outputs.wait_accepted(len(self._choices)):
            await self._advance()
        await self._delivery.begin_stream(request.typed_events, self._waiting_before())
        while not self._has_output:
            if await self._outputs.wait_output(self._state.config.stream_heartbeat_s or None):
                await self._advance()
            else:
                await self._delivery.heartbeat()
        await self._delivery.events([*role_events(head, self._choices), *self._new_events()])
        await self._until_done()
        tail = last_event(head, self._usage(), await self._timings(request))
        await self._delivery.end_stream(tail, [c.finish_reason for c in self._choices])

    def _waiting_before(self) -> int | None:
        """How many sequences wait before the last of ours; None when all of ours run."""
        admitted = self._outputs.hit_tokens
        waiting = [c.seq_id for c in self._choices if c.seq_id not in admitted]
        if not waiting or self._has_output:
            return None
        return self._state.engine.waiting_before(waiting[-1])

    @property
    def _has_output(self) -> bool:
        return any(choice.output_tokens or choice.done for choice in self._choices)

    async def _answer(self, head: ResponseHead, request: GenerationRequest) -> None:
        await self._until_done()
        timings = await self._timings(request)
        deltas = [choice.take() for choice in self._choices]
        counts, tokenizer = self._usage(), self._state.tokenizer
        whole = full_body(head, self._choices, deltas, counts, tokenizer, timings)
        await self._delivery.whole(whole, timings)

    async def _timings(self, request: GenerationRequest) -> RequestTimings | None:
        """If it was asked for, what the folds would say if the request ended now."""
        if not request.include_metrics:
            return None
        ended = self._witness.as_if_finished(self._output_tokens)
        return await asyncio.to_thread(self._state.views.timings, ended)

    def _new_events(self) -> list[bytes]:
        """All choices' news of one step."""
        parts: list[bytes] = []
        for choice in self._choices:
            delta = choice.take()
            if not delta.is_empty:
                parts.append(self._writer.chunk(choice, delta))
        return parts

    async def _judge(self, request: GenerationRequest) -> None:
        """Whether constrained outputs that ended by themselves obey their constraint."""
        whole = [choice.full_text for choice in self._choices if choice.end is EndReason.EOS]
        if request.grammar is not None and whole:
            self._answered = True
            self._witness.answered()
            self._witness.output_valid = await self._state.ingest.judge(request.grammar, whole)

    def _usage(self) -> dict[str, Any]:
        first = self._choices[:: self._choices_a_prompt]
        cached = sum(self._outputs.hit_tokens.get(choice.seq_id, 0) for choice in first)
        return usage(self._prompt_tokens, self._output_tokens, cached)

    @property
    def _output_tokens(self) -> int:
        return sum(choice.output_tokens for choice in self._choices)

    async def _watch(self) -> None:
        """Notice that the client went away, whatever the request is doing."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(EndReason.DISCONNECT)

    async def _explain(self, reason: EndReason) -> None:
        """The last word to a client that is still there."""
        self._witness.noticed()
        if reason is not EndReason.DISCONNECT:
            error = error_of_end(reason, self._state.retry_after_s)
            if error is not None:
                await self._delivery.last_word(error)

    def _on_full(self, full: bool) -> None:
        """The reader is slower than the engine: pause the sequences, or give the stream up."""
        if not self._delivery.streaming:
            return  # nobody reads yet: the answer is being collected
        config = self._state.config
        if full and config.slow_client == "drop":
            asyncio.get_running_loop().call_soon(self.interrupt, EndReason.SLOW_CLIENT)
            return
        for choice in self._choices:
            if not choice.done:
                self._state.engine.pause(choice.seq_id, full)

    def _write_waits(self, waiting: bool) -> None:
        """A write began or ended: a reader that takes nothing for long is as good as gone."""
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        if waiting:
            self._stuck = asyncio.get_running_loop().call_later(
                self._state.config.slow_client_timeout_s,
                self.interrupt,
                EndReason.SLOW_CLIENT,
            )

    def _cancel_rest(self, reason: EndReason) -> None:
        """Free what the engine still holds for this request."""
        word = reason if reason.outcome is Outcome.CANCELLED else EndReason.DISCONNECT
        for choice in self._choices:
            if not choice.done:
                self._state.engine.cancel(choice.seq_id, word)
