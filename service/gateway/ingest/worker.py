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

from service.gateway.ingest.embedding_rendering import render_embeddings
from service.gateway.ingest.formats import outputs_are_valid
from service.gateway.ingest.frames import (
    CallsValidation,
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
    receive_job,
    send,
    split_result,
)
from service.gateway.ingest.json_schemas import validates
from service.gateway.ingest.prompting import BodyReader
from service.gateway.ingest.score_rendering import ScoredPrompt, render_scores
from service.gateway.ingest.token_reader import TokenReader
from service.text.reasoning import reasoning_format
from service.text.tokenizer import Tokenizer, load_tokenizer
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


def _serve(connection: socket.socket) -> None:
    reader: BodyReader | None = None
    tokens: TokenReader | None = None
    tokenizer: Tokenizer | None = None
    while (found := receive_job(connection)) is not None:
        job, blobs = found
        match job:
            case Start():
                tokenizer = load_tokenizer(job.model)
                clock = MonotonicClock()
                model = job.model
                reasoning = reasoning_format(tokenizer, model.reasoning_format)
                named = model.name, model.defaults, clock, job.compat
                reader = BodyReader(tokenizer, *named, reasoning, model.tool_format)
                tokens = TokenReader(tokenizer, model.name, reader.dialect)
                send(connection, Ready(), [])
            case ReadBody():
                assert reader is not None, "a body before Start"
                result = reader.read(job.operation, bytes(blobs.pop()), job.context_tokens)
                send(connection, *split_result(result))
            case ReadTokens():
                assert tokens is not None, "a body before Start"
                answer = tokens.read(job.task, bytes(blobs.pop()), job.context_tokens)
                if isinstance(answer, bytes):
                    send(connection, TokensAnswer(None), [answer])
                else:
                    send(connection, TokensAnswer(answer), [])
            case RenderScores():
                assert tokenizer is not None, "scores before Start"
                ids, logprobs, ranks, top_ids, top_logprobs = map(bytes, blobs)
                scored = ScoredPrompt(
                    ids, logprobs, ranks, top_ids, top_logprobs, job.width, job.shown, job.by_id
                )
                send(connection, Rendered(), render_scores(job.shape, scored, tokenizer))
            case RenderEmbeddings():
                send(connection, Rendered(), [render_embeddings(blobs, job.base64)])
            case ValidateCalls():
                verdicts = [validates(job.schemas[at], text) for at, text in job.calls]
                send(connection, CallsValidation(verdicts), [])
            case ValidateOutput():
                send(connection, ValidationResult(outputs_are_valid(job.grammar, job.texts)), [])


if __name__ == "__main__":
    sys.exit(main())
