"""Parses and tokenizes a request's body, until the request is interrupted."""

from __future__ import annotations

import asyncio

from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.errors import Interrupted
from service.gateway.generation.request_recorder import RequestRecorder
from service.gateway.generation.state import GatewayState
from service.gateway.ingest.prompting import IngestResult
from service.gateway.ingest.schemas import GenerationRequest, Operation


class IngestTask:
    """One instance a request; `outputs` has the reason of an interruption."""

    def __init__(self, state: GatewayState, operation: Operation, outputs: OutputQueue) -> None:
        self._state = state
        self._operation = operation
        self._outputs = outputs
        self._task: asyncio.Task[IngestResult] | None = None

    async def read(
        self, body: bytes, recorder: RequestRecorder
    ) -> tuple[GenerationRequest, IngestResult]:
        """The parsed request and its tokenized prompts. Raises ApiError when it cannot be served,
        and Interrupted when `cancel` is called meanwhile."""
        whole_ns = self._state.clock.now_ns()
        result = await self._read(body)
        request = result.request
        if request is not None:
            self._state.adapter_of(request.model)  # a name that is not served is said first
            waited_ns = max(0, result.begun_ns - whole_ns)
            model = request.model or self._state.model
            recorder.parsed(request, model, result.parsed_ns, waited_ns)
        if result.refusal is not None:
            raise result.refusal.error()
        assert request is not None
        if not self._state.engine.ready or not result.prompts:
            raise self._state.engine.unavailable_error()
        if request.tool_result_ids:  # an id is found once: a request that is sent again needs it
            calls, unknown = self._state.calls.take(request.tool_result_ids)
            recorder.returned(result.parsed_ns, calls, unknown)
        return request, result

    async def _read(self, body: bytes) -> IngestResult:
        engine = self._state.engine
        started = engine.started if engine.ready else None
        context_tokens = None if started is None else started.max_model_tokens
        work = self._state.ingest.read(self._operation, body, context_tokens)
        self._task = asyncio.ensure_future(work)
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._outputs.interruption is None or not self._task.cancelled():
                raise
            raise Interrupted(self._outputs.interruption) from None
        finally:
            self._task.cancel()
            self._task = None

    def cancel(self) -> None:
        """Stop the work on the body, if there is any."""
        if self._task is not None:
            self._task.cancel()
