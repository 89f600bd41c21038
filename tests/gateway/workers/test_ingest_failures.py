"""A job that fails in its worker, for whatever reason, costs no other one anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from service.config.settings import ModelKind, ModelRef, SamplingDefaults
from service.gateway.errors import ApiError
from service.gateway.ingest.frames import Blob, ReadBody, ToGateway, ToWorker
from service.gateway.ingest.pool import IN_PLACE_VECTOR_BYTES, IngestPool
from service.gateway.ingest.prompting import BodyReader, IngestResult
from service.gateway.ingest.schemas import Operation
from service.gateway.ingest.worker_process import WorkerProcess
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock
from telemetry.metrics.ingest_counts import IngestCounts, WorkerEnd

MODEL = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
CONTEXT_TOKENS = 1 << 20
READER = BodyReader(load_tokenizer(MODEL), MODEL.name, SamplingDefaults(), MonotonicClock())
LONG = json.dumps({"prompt": "hello " * 1000, "max_tokens": 4}).encode()


@asynccontextmanager
async def pool(**given: Any) -> AsyncIterator[IngestPool]:
    """A pool of one worker."""
    running = IngestPool(READER, MODEL, 1, **given)
    try:
        yield running
    finally:
        await running.close()


async def read(running: IngestPool, operation: Operation, whole: bytes) -> IngestResult:
    """What a worker has read; a worker never leaves a body without an answer."""
    async with asyncio.timeout(60):
        return await running.read(operation, whole, CONTEXT_TOKENS)


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_number_of_any_size_in_a_schema_is_repeated_and_ends_no_worker(choice: str) -> None:
    """JSON has integers of more than 64 bits, MessagePack has none."""
    schema = {"type": "object", "properties": {"n": {"maximum": 1 << 64}}}
    tools = [{"type": "function", "name": "f", "parameters": schema}]
    whole = json.dumps({"input": "hi", "tools": tools, "tool_choice": choice}).encode()

    async def scenario() -> None:
        async with pool() as running:
            await read(running, Operation.TEXT, LONG)
            before = running.worker_pids
            result = await read(running, Operation.RESPONSES, whole)

            assert result.refusal is None
            assert result.request is not None
            assert json.loads(result.request.repeated or b"")["tools"][0]["parameters"] == schema
            assert running.worker_pids == before

    asyncio.run(scenario())


def test_a_job_that_fails_in_its_worker_is_an_error_and_the_worker_goes_on() -> None:
    """The vector has half a number too much."""

    async def scenario() -> None:
        async with pool() as running:
            await read(running, Operation.TEXT, LONG)
            before = running.worker_pids
            with pytest.raises(ApiError) as caught:
                await running.render_embeddings([bytes(IN_PLACE_VECTOR_BYTES + 2)], base64=False)

            assert caught.value.status == 500
            assert (await read(running, Operation.TEXT, LONG)).refusal is None
            assert running.worker_pids == before

    asyncio.run(scenario())


class OutOfStep(WorkerProcess):
    """What it answers to its first body cannot be understood."""

    errors: ClassVar[list[ValueError]]

    def ask(self, job: ToWorker, blobs: Sequence[Blob]) -> tuple[ToGateway, list[bytearray]]:
        if isinstance(job, ReadBody) and self.errors:
            raise self.errors.pop()
        return super().ask(job, blobs)


def test_a_worker_that_is_out_of_step_fails_its_job_alone_and_is_replaced() -> None:
    OutOfStep.errors, counts = [ValueError("out of step")], IngestCounts()

    async def scenario() -> None:
        async with pool(counts=counts, launch=OutOfStep.start) as running:
            with pytest.raises(ApiError) as caught:
                await read(running, Operation.TEXT, LONG)

            assert caught.value.status == 500
            assert (await read(running, Operation.TEXT, LONG)).refusal is None

    asyncio.run(scenario())
    assert counts.worker_ends[WorkerEnd.DIED] == 1
