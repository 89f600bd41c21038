"""The worker processes that read bodies and validate outputs.

A small body is read in place, on the event loop: that costs less than sending it to a worker.
Larger ones go to worker processes, because decoding JSON, validating it and rendering a template
hold the interpreter lock, so a thread would block the event loop too. The number and the bytes of
waiting jobs are limited; beyond that there is a 429. A waiting job whose client disconnects is
dropped; a running one is ended by killing its worker, which is restarted.

Schemas are never processed in place, not even small ones: patterns and references can make a small
schema slow, and a deep one can crash a library.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from service.config.settings import Compat, ModelRef
from service.engine.plan import Grammar
from service.gateway.errors import ApiError, busy, internal, timed_out
from service.gateway.ingest.embedding_rendering import render_embeddings
from service.gateway.ingest.frames import (
    Blob,
    CallsValidation,
    IngestHeader,
    JobFailed,
    ReadBody,
    ReadTokens,
    Rendered,
    RenderEmbeddings,
    RenderScores,
    ToGateway,
    TokensAnswer,
    ToWorker,
    ValidateCalls,
    ValidateOutput,
    ValidationResult,
    join_result,
)
from service.gateway.ingest.prompting import BodyReader, IngestResult, PackedError
from service.gateway.ingest.schemas import Operation
from service.gateway.ingest.score_rendering import ScoredPrompt, ScoreShape, render_scores
from service.gateway.ingest.token_reader import TokenReader, TokenTask
from service.gateway.ingest.worker_process import WorkerDied, WorkerProcess
from telemetry.facts.reasons import EndReason
from telemetry.metrics.ingest_counts import IngestCounts, WorkerEnd

log = logging.getLogger("phasescope.gateway")

IN_PLACE_BYTES = 4 * 1024  # at most 2 ms
IN_PLACE_VECTOR_BYTES = 32 * 1024  # of numbers; at most 2 ms
IN_PLACE_SCORES = 512  # texts of tokens; at most 2 ms too
LARGE_BYTES = 256 * 1024
WAITING_JOBS = 256
WAITING_BYTES = 128 * 1024 * 1024
_JOB_S = 60.0  # no body within the default limits takes that long
_VALIDATION_S = 1.0
_GRACE_S = 0.25  # to finish a job that is nearly done is cheaper than a new worker
_RETRY_S = 1.0
_BUSY_S = 2
# a body with one of these may contain a schema; field names can be written with escapes
_SCHEMA_WORDS = (
    b"response_format", b"structured_outputs", b"guided_", b'"json_schema"', b'"regex"', b'"ebnf"',
    b'"tools"', b"\\u",
)  # fmt: skip


Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Job:
    message: ToWorker
    blobs: list[Blob]
    limit_s: float
    answer: asyncio.Future[tuple[ToGateway, list[bytearray]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.blobs))


Queues = tuple[deque[_Job], ...]


class Launch(Protocol):
    """Starts a worker, as `WorkerProcess.start`."""

    def __call__(self, model: ModelRef, *, compat: Compat) -> WorkerProcess: ...


class IngestPool:
    """Runs jobs in worker processes; used on the event loop.

    Each slot has one worker process and one thread that waits for it. One slot takes no large jobs
    (if there is more than one), so that small jobs never wait for large ones.
    """

    def __init__(
        self,
        reader: BodyReader,
        model: ModelRef,
        workers: int,
        counts: IngestCounts | None = None,
        waiting_jobs: int = WAITING_JOBS,
        waiting_bytes: int = WAITING_BYTES,
        launch: Launch = WorkerProcess.start,
    ) -> None:
        assert workers > 0, workers
        self._counts = counts or IngestCounts()
        self._waiting_jobs = waiting_jobs
        self._waiting_bytes = waiting_bytes
        self._reader = reader
        self._tokens = TokenReader(reader.tokenizer, reader.model, reader.dialect)
        self._start_worker = lambda: launch(model, compat=reader.compat)
        self._small: deque[_Job] = deque()
        self._large: deque[_Job] = deque()
        self._wakeup = asyncio.Event()
        self._is_warm = False
        self._threads = ThreadPoolExecutor(workers, "phasescope-ingest")
        self._running: dict[WorkerProcess, Queues] = {}  # and what each takes
        # the queues of each slot, in order of preference: neither size can starve the other
        takes = [(self._small,), *[(self._large, self._small)] * (workers - 1)]
        if workers == 1:
            takes = [(self._small, self._large)]
        self._slots = [asyncio.create_task(self._serve(queues)) for queues in takes]

    async def read(
        self, operation: Operation, body: bytes, context_tokens: int | None
    ) -> IngestResult:
        """Parse and tokenize a body. Raises ApiError when too many jobs wait or the worker fails.

        `context_tokens` None: no engine is ready, the body is only parsed.
        """
        if self.reads_in_place(body):
            return self._reader.read(operation, body, context_tokens)
        answer, blobs = await self._do(_Job(ReadBody(operation, context_tokens), [body], _JOB_S))
        assert isinstance(answer, IngestHeader), answer
        return join_result(answer, blobs)

    async def tokens(
        self, task: TokenTask, body: bytes, context_tokens: int, adapters: Sequence[str] = ()
    ) -> bytes:
        """The answer to a body of /tokenize or /detokenize. Raises ApiError."""
        if self.reads_in_place(body):
            found = self._tokens.read(task, body, context_tokens, adapters)
        else:
            job = _Job(ReadTokens(task, context_tokens, [*adapters]), [body], _JOB_S)
            answer, blobs = await self._do(job)
            assert isinstance(answer, TokensAnswer), answer
            found = answer.refusal or bytes(blobs.pop())
        if isinstance(found, PackedError):
            raise found.error()
        return found

    async def render_scores(self, shape: ScoreShape, scored: ScoredPrompt) -> list[bytes]:
        """Scores of a prompt as JSON. Raises ApiError."""
        if scored.entries <= IN_PLACE_SCORES:
            return render_scores(shape, scored, self._reader.tokenizer)
        arrays: list[Blob] = [
            scored.ids, scored.logprobs, scored.ranks, scored.top_ids, scored.top_logprobs,
        ]  # fmt: skip
        job = _Job(RenderScores(shape, scored.width, scored.shown, scored.by_id), arrays, _JOB_S)
        answer, blobs = await self._do(job)
        assert isinstance(answer, Rendered), answer
        return list(map(bytes, blobs))

    async def render_embeddings(self, vectors: list[bytes], base64: bool) -> bytes:
        """The list `data` of an answer. Raises ApiError."""
        if sum(map(len, vectors)) <= IN_PLACE_VECTOR_BYTES:
            return render_embeddings(vectors, base64)
        answer, blobs = await self._do(_Job(RenderEmbeddings(base64), [*vectors], _JOB_S))
        assert isinstance(answer, Rendered), answer
        return bytes(blobs.pop())

    @staticmethod
    def reads_in_place(body: bytes) -> bool:
        """Whether a body is small and certainly has no schema."""
        return len(body) <= IN_PLACE_BYTES and not any(word in body for word in _SCHEMA_WORDS)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers."""
        return sorted(worker.pid for worker in self._running)

    async def validate_output(self, grammar: Grammar, texts: list[str]) -> bool | None:
        """Whether texts satisfy their grammar; None if that cannot be checked within a second."""
        try:
            async with asyncio.timeout(_VALIDATION_S):
                answer, _ = await self._do(_Job(ValidateOutput(grammar, texts), [], _VALIDATION_S))
        except (ApiError, TimeoutError):
            return None
        assert isinstance(answer, ValidationResult), answer
        return answer.valid

    async def validate_calls(
        self, schemas: list[str], calls: list[tuple[int, str]]
    ) -> list[bool | None]:
        """Whether the arguments of calls obey the schemas whose numbers they have; None where that
        cannot be checked within a second."""
        try:
            async with asyncio.timeout(_VALIDATION_S):
                job = _Job(ValidateCalls(schemas, calls), [], _VALIDATION_S)
                answer, _ = await self._do(job)
        except (ApiError, TimeoutError):
            return [None] * len(calls)
        assert isinstance(answer, CallsValidation), answer
        return answer.valid

    def warm_up(self) -> None:
        """Start the workers now, before the first job."""
        self._is_warm = True
        self._wakeup.set()

    async def close(self) -> None:
        """End all workers; waiting jobs fail."""
        for slot in self._slots:
            slot.cancel()
        for worker in self._running:
            worker.kill()
        await asyncio.gather(*self._slots, return_exceptions=True)
        for job in (*self._small, *self._large):
            _fail(job, internal())
        self._threads.shutdown(wait=False)

    async def _do(self, job: _Job) -> tuple[ToGateway, list[bytearray]]:
        waiting_bytes = self._counts.waiting_bytes
        is_full = self._counts.waiting_jobs >= self._waiting_jobs
        if is_full or (waiting_bytes and waiting_bytes + job.size_bytes > self._waiting_bytes):
            self._counts.refused += 1
            message = "as many long requests wait to be read as may"
            raise busy(EndReason.QUEUE_FULL, message, _BUSY_S)
        queue = self._large if job.size_bytes > LARGE_BYTES else self._small
        queue.append(job)
        self._count_waiting()
        self._wakeup.set()
        try:
            return await job.answer
        finally:
            _drop(queue, job)
            self._count_waiting()

    def _count_waiting(self) -> None:
        waiting = [*self._small, *self._large]
        self._counts.waiting_jobs = len(waiting)
        self._counts.waiting_bytes = sum(job.size_bytes for job in waiting)

    async def _serve(self, queues: Queues) -> None:
        """Run one slot: a worker process, and a new one whenever it has ended."""
        while True:
            while not (self._is_warm or self._small or self._large):
                await self._wait_for_wakeup()
            worker = await self._start()
            if worker is None:
                continue
            self._running[worker] = queues
            try:
                while await self._work(worker, await self._next(queues)):
                    pass
            finally:
                del self._running[worker]
                await asyncio.shield(self._in_thread(worker.end))

    async def _start(self) -> WorkerProcess | None:
        starting = self._in_thread(self._start_worker)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # the pool is closed: end the worker that is starting
            with contextlib.suppress(WorkerDied, OSError):
                await self._in_thread((await starting).end)
            raise
        except Exception as error:
            log.error("an ingest worker did not start: %s", error or type(error).__name__)
            self._counts.ended(WorkerEnd.NOT_STARTED)
            self._fail_unserved()
            await asyncio.sleep(_RETRY_S)
            return None

    def _fail_unserved(self) -> None:
        """Fail the waiting jobs that no running worker takes."""
        served = [id(queue) for queues in self._running.values() for queue in queues]
        for queue in (self._small, self._large):
            while queue and id(queue) not in served:
                _fail(queue.popleft(), internal())
        self._count_waiting()

    async def _next(self, queues: Queues) -> _Job:
        while True:
            for queue in queues:
                while queue:
                    job = queue.popleft()
                    self._count_waiting()
                    if not job.answer.done():
                        return job
            await self._wait_for_wakeup()

    async def _wait_for_wakeup(self) -> None:
        self._wakeup.clear()
        await self._wakeup.wait()

    async def _work(self, worker: WorkerProcess, job: _Job) -> bool:
        """Run one job. False if the worker has ended."""
        asked, end = self._in_thread(lambda: worker.ask(job.message, job.blobs)), WorkerEnd.DIED
        try:
            await asyncio.wait({asked, job.answer}, timeout=job.limit_s,
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            if not asked.done() and job.answer.done():  # the client has disconnected
                await asyncio.wait({asked}, timeout=_GRACE_S)
            if not asked.done():
                end = WorkerEnd.CLIENT_LEFT if job.answer.done() else WorkerEnd.TIMEOUT
                _fail(job, timed_out(EndReason.TIMEOUT))
                worker.kill()
            answer, blobs = await asked
        except asyncio.CancelledError:  # the pool is closed
            asked.add_done_callback(asyncio.Future.exception)
            raise
        except Exception as error:
            if not isinstance(error, WorkerDied):  # it is out of step with us
                log.error("an ingest worker is ended: %s", type(error).__name__)
            self._counts.ended(end)
            _fail(job, internal())
            worker.kill()
            return False
        if isinstance(answer, JobFailed):
            log.error("an ingest job failed: %s", answer.error)
            _fail(job, internal())
        elif not job.answer.done():
            job.answer.set_result((answer, blobs))
        return True

    def _in_thread(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)


def _fail(job: _Job, error: ApiError) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)


def _drop(queue: deque[_Job], job: _Job) -> None:
    with contextlib.suppress(ValueError):  # it is running, or done
        queue.remove(job)
