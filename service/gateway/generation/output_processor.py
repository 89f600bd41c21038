"""Turns the emissions of one request into its response, as a stream or in one piece.

The headers of a stream are sent when the engine has accepted all of its sequences and can refuse
none of them any more. So a refusal has a real status, and while the request waits in the queue its
client gets comments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from service.engine.plan import Emission
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.errors import ApiError, Interrupted, error_of_end
from service.gateway.generation.answer_writer import AnswerWriter
from service.gateway.generation.choice import Choice, Delta
from service.gateway.generation.delivery import Delivery
from service.gateway.generation.prompt_echo import echoes_of
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.responses import (
    ChunkWriter,
    ResponseHead,
    best_choices,
    usage,
)
from service.gateway.generation.responses_writer import ResponsesWriter
from service.gateway.generation.state import GatewayState
from service.gateway.ingest.prompting import PackedPrompt
from service.gateway.ingest.schemas import GenerationRequest
from telemetry.facts.reasons import EndReason
from telemetry.requests.timings import RequestTimings


class OutputProcessor:
    """Detokenizes and sends the output of one request's choices."""

    def __init__(
        self,
        *,
        state: GatewayState,
        recorder: RequestRecorder,
        outputs: OutputQueue,
        delivery: Delivery,
        request: GenerationRequest,
        head: ResponseHead,
        choices: list[Choice],
        prompts: Sequence[PackedPrompt],
    ) -> None:
        """`choices` are the candidates of all prompts, in the order of `prompts`."""
        self._state = state
        self._recorder = recorder
        self._outputs = outputs
        self._delivery = delivery
        self._request = request
        self._choices = choices
        self._prompts = prompts
        self._by_id = {choice.seq_id: choice for choice in choices}
        self._writer: AnswerWriter = ChunkWriter(head, state.tokenizer)
        if request.repeated is not None:
            may_call = request.tools is not None
            self._writer = ResponsesWriter(head, state.tokenizer, request.repeated, may_call)
        delivery.failed = self._writer.failed
        self._failure: ApiError | None = None

    def close(self) -> None:
        """The request has ended: drop the error, whose traceback refers to the request."""
        self._failure = None

    async def respond(self) -> None:
        """Send the whole response. Raises ApiError, and Interrupted."""
        if self._request.stream:
            await self._stream()
        else:
            await self._respond_whole()

    async def _stream(self) -> None:
        while not await self._outputs.wait_accepted(len(self._choices)):
            await self._process_next()
        await self._delivery.begin_stream(self._request.typed_events, self._waiting_before())
        await self._delivery.send_opening(self._writer.opening())
        while not self._has_output:
            if await self._outputs.wait_output(self._state.config.stream_heartbeat_s or None):
                await self._process_next()
            else:
                await self._delivery.send_heartbeat()
        first = [*self._writer.first(self._choices), *self._echoes(), *self._new_events()]
        await self._delivery.send_events(first)
        await self._process_until_done()
        tail = self._writer.last(self._usage(), await self._timings())
        reasons = [choice.finish_reason for choice in self._choices]
        await self._delivery.end_stream(tail, reasons, self._writer.done)

    async def _respond_whole(self) -> None:
        await self._process_until_done()
        timings = await self._timings()
        sent = best_choices(self._choices, self._request)
        deltas = [choice.take_delta() for choice in sent]
        read = [choice.read for choice in self._choices[:: self._request.candidates]]
        echoes = await echoes_of(self._state.ingest, self._request, self._prompts, read)
        body = await self._writer.whole(sent, deltas, self._usage(), timings, echoes)
        if self._outputs.interruption is not None:
            raise Interrupted(self._outputs.interruption)
        await self._delivery.send_response(body, timings)

    async def _process_until_done(self) -> None:
        """Process all output, and write it if the response is a stream."""
        while not all(choice.done for choice in self._choices):
            await self._outputs.push_to(self._on_emissions)
            if self._failure is not None:
                raise self._failure
            await self._delivery.finish_write()
            if not self._outputs.is_empty:
                await self._process_next()
                if self._delivery.streaming:
                    await self._delivery.send_events(self._new_events())

    async def _process_next(self) -> None:
        """Wait for emissions and process them. Raises ApiError for an end that is an error."""
        self._process(await self._outputs.get())
        if self._failure is not None:
            raise self._failure

    def _on_emissions(self, emissions: list[Emission]) -> bool:
        """Process the emissions of one step without waiting. False ends the push.

        The text is written after the step's tokens of all streams have been detokenized: a client
        process that the first write wakes up then finds the other streams' text there too.
        """
        self._process(emissions)
        if self._failure is not None:
            return False
        if self._delivery.streaming:
            deltas = self._new_events()
            if deltas:
                body = self._delivery.encode_events(deltas)
                self._state.engine.write_after_flush(self._write, body)
        return not all(choice.done for choice in self._choices)

    def _write(self, body: bytes) -> None:
        try:
            if not self._delivery.write(body):
                self._outputs.stop_pushing()
        except Exception as error:
            self._outputs.fail(error)

    def _process(self, emissions: list[Emission]) -> None:
        """Detokenize emissions; an end that is an error sets `_failure`."""
        begin_ns = self._state.clock.now_ns()
        for emission in emissions:
            choice = self._by_id[emission.seq_id]
            choice.accept(emission)
            if choice.stop_found and emission.end is None:
                self._state.engine.cancel(choice.seq_id, EndReason.STOP_STRING)
        self._recorder.detokenized(begin_ns)
        for emission in emissions:
            if emission.end is not None and emission.end is not EndReason.STOP_STRING:
                error = error_of_end(emission.end, self._state.retry_after_s, emission.detail)
                self._failure = self._failure or error

    def _new_events(self) -> list[bytes]:
        """A chunk for each choice with new text."""
        parts: list[bytes] = []
        counts = self._usage() if self._request.compat_options.running_usage else None
        for choice in self._choices:
            delta = choice.take_delta()
            if not delta.is_empty:
                parts.append(self._writer.chunk(choice, delta, counts))
        return parts

    def _echoes(self) -> list[bytes]:
        """A chunk with its prompt's text for each choice, if that was asked for."""
        if not self._request.echo:
            return []
        each = self._request.candidates
        return [
            self._writer.chunk(choice, Delta(self._prompts[index // each].text, [], None))
            for index, choice in enumerate(self._choices)
        ]

    def _waiting_before(self) -> int | None:
        """How many sequences wait before the last of this request; None if all have been
        admitted."""
        admitted = self._outputs.hit_tokens
        waiting = [c.seq_id for c in self._choices if c.seq_id not in admitted]
        if not waiting or self._has_output:
            return None
        return self._state.engine.waiting_before(waiting[-1])

    @property
    def _has_output(self) -> bool:
        return any(choice.output_tokens or choice.done for choice in self._choices)

    async def _timings(self) -> RequestTimings | None:
        """The request's timings if it ended now, if it asked for them."""
        if not self._request.include_metrics:
            return None
        ended = self._recorder.preview_finished(self._output_tokens)
        return await asyncio.to_thread(self._state.views.timings, ended)

    def _usage(self) -> dict[str, Any]:
        first = self._choices[:: self._request.candidates]
        cached = sum(self._outputs.hit_tokens.get(choice.seq_id, 0) for choice in first)
        prompt_tokens = sum(prompt.tokens for prompt in self._prompts)
        reasoned = sum(c.reasoning.tokens for c in self._choices if c.reasoning is not None)
        return usage(prompt_tokens, self._output_tokens, cached, reasoned)

    @property
    def _output_tokens(self) -> int:
        return sum(choice.output_tokens for choice in self._choices)
