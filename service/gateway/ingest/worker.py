"""An ingest worker process: reads bodies and validates texts, one job at a time.

Clients choose how large the work is. In a process of its own it delays no stream, can be killed,
and has a memory limit. The process ignores SIGINT and SIGTERM; it ends when the gateway closes the
socket.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

from service.gateway.ingest.embedding_rendering import render_embeddings
from service.gateway.ingest.formats import outputs_are_valid
from service.gateway.ingest.frames import (
    Blob,
    CallsValidation,
    Job,
    JobFailed,
    JobResult,
    ReadBody,
    ReadTokens,
    Ready,
    Rendered,
    RenderEmbeddings,
    RenderScores,
    Start,
    TokensAnswer,
    ValidateCalls,
    ValidateOutput,
    ValidationResult,
    frame,
    receive_job,
    send,
    send_frame,
    split_result,
)
from service.gateway.ingest.json_schemas import validates
from service.gateway.ingest.prompting import BodyReader
from service.gateway.ingest.score_rendering import ScoredPrompt, render_scores
from service.gateway.ingest.token_reader import TokenReader
from service.text.reasoning import reasoning_format
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock

_NICE = 5  # streams and engine steps come first
_MAX_BYTES = 4 << 30  # of address space


def main() -> int:
    """Serve the socket whose file descriptor is the only argument."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MAX_BYTES if hard == resource.RLIM_INFINITY else min(_MAX_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _serve(connection)
    return 0


class _Worker:
    """What a worker has once it has started."""

    def __init__(self, start: Start) -> None:
        self._tokenizer = load_tokenizer(start.model)
        model = start.model
        self._reader = BodyReader(
            self._tokenizer,
            model.name,
            model.defaults,
            MonotonicClock(),
            start.compat,
            reasoning_format(self._tokenizer, model.reasoning_format),
            model.tool_format,
        )
        self._tokens = TokenReader(self._tokenizer, model.name, self._reader.dialect)

    def do(self, job: Job, blobs: list[bytearray]) -> tuple[JobResult, Sequence[Blob]]:
        """The answer to one job, and its blobs."""
        match job:
            case ReadBody():
                return split_result(
                    self._reader.read(job.operation, bytes(blobs.pop()), job.context_tokens)
                )
            case ReadTokens():
                body = bytes(blobs.pop())
                answer = self._tokens.read(job.task, body, job.context_tokens, job.adapters)
                if isinstance(answer, bytes):
                    return TokensAnswer(None), [answer]
                return TokensAnswer(answer), []
            case RenderScores():
                ids, logprobs, ranks, top_ids, top_logprobs = map(bytes, blobs)
                scored = ScoredPrompt(
                    ids, logprobs, ranks, top_ids, top_logprobs, job.width, job.shown, job.by_id
                )
                return Rendered(), render_scores(job.shape, scored, self._tokenizer)
            case RenderEmbeddings():
                return Rendered(), [render_embeddings(blobs, job.base64)]
            case ValidateCalls():
                verdicts = [validates(job.schemas[at], text) for at, text in job.calls]
                return CallsValidation(verdicts), []
            case ValidateOutput():
                return ValidationResult(outputs_are_valid(job.grammar, job.texts)), []


def _serve(connection: socket.socket) -> None:
    worker: _Worker | None = None
    while (found := receive_job(connection)) is not None:
        job, blobs = found
        if isinstance(job, Start):
            worker = _Worker(job)
            send(connection, Ready(), [])
            continue
        assert worker is not None, "a job before Start"
        send_frame(connection, *_answer(worker, job, blobs))


def _answer(worker: _Worker, job: Job, blobs: list[bytearray]) -> tuple[bytes, Sequence[Blob]]:
    """What is sent for one job. One that fails costs no other job its worker, unless memory has run
    out: then a new process has more of it."""
    try:
        result, parts = worker.do(job, blobs)
        return frame(result, parts), parts
    except MemoryError:
        raise
    except Exception as error:
        return frame(JobFailed(_place_of(error)), []), []


def _place_of(error: Exception) -> str:
    """The type of an error and where it was raised; its text may be a client's."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(last.filename)}:{last.lineno}"


if __name__ == "__main__":
    sys.exit(main())
