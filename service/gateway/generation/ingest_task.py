"""Parses and tokenizes a request's body, until the request is interrupted."""

from __future__ import annotations

import asyncio

from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.errors import Interrupted
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.state import GatewayState
from service.gateway.ingest.prompting import Reading
from service.gateway.ingest.schemas import GenerationRequest, Operation


class IngestTask:
    """One instance a request; `outputs` has the reason of an interruption."""

    def __init__(self, state: GatewayState, operation: Operation, outputs: OutputQueue) -> None:
        self._state = state
        self._operation = operation
        self._outputs = outputs
        self._reading: asyncio.Task[Reading] | None = None

    async def read(
        self, body: bytes, recorder: RequestRecorder
    ) -> tuple[GenerationRequest, Reading]:
        """The parsed request and its tokenized prompts. Raises ApiError when it cannot be served,
        and Interrupted when `cancel` is called meanwhile."""
        whole_ns = self._state.clock.now_ns()
        reading = await self._read(body)
        request = reading.request
        if request is not None:
            waited_ns = max(0, reading.begun_ns - whole_ns)
            recorder.parsed(request, self._state.model, reading.parsed_ns, waited_ns)
        if reading.refusal is not None:
            raise reading.refusal.error()
        assert request is not None
        if not self._state.engine.ready or not reading.prompts:
            raise self._state.engine.unavailable_error()
        return request, reading

    async def _read(self, body: bytes) -> Reading:
        engine = self._state.engine
        started = engine.started if engine.ready else None
        context_tokens = None if started is None else started.max_model_tokens
        work = self._state.ingest.read(self._operation, body, context_tokens)
        self._reading = asyncio.ensure_future(work)
        try:
            return await self._reading
        except asyncio.CancelledError:
            if self._outputs.interruption is None or not self._reading.cancelled():
                raise
            raise Interrupted(self._outputs.interruption) from None
        finally:
            self._reading.cancel()
            self._reading = None

    def cancel(self) -> None:
        """Stop the work on the body, if there is any."""
        if self._reading is not None:
            self._reading.cancel()
