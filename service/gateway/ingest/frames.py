"""The messages between gateway and ingest workers, over one blocking stream socket each.

A message is a MessagePack header and blobs with the large data: bodies to the worker, token ids
back. Blobs are outside of the header because encoding and decoding hold the interpreter lock, and
reading and writing a socket does not.

    header length (4 bytes) | blobs (4 bytes) | blob lengths (4 bytes each) | header | blobs
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import msgspec

from service.config.settings import Compat, ModelRef
from service.engine.plan import Grammar
from service.gateway.ingest.prompting import IngestResult, PackedError, PackedPrompt
from service.gateway.ingest.schemas import GenerationRequest, Operation
from service.gateway.ingest.score_rendering import ScoreShape
from service.gateway.ingest.token_reader import TokenTask

_NUMBER = struct.Struct("<I")
_MOST_BLOBS = 4096

Blob = bytes | bytearray


class Start(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker; it answers Ready when it has loaded the tokenizer."""

    model: ModelRef
    compat: Compat


class ReadBody(msgspec.Struct, frozen=True, tag=True):
    """The only blob is the body; the answer is an IngestHeader with a blob a prompt."""

    operation: Operation
    context_tokens: int | None


class ReadTokens(msgspec.Struct, frozen=True, tag=True):
    """The only blob is the body; the answer is a TokensAnswer, with the answer's body as a blob
    unless it is refused. `adapters` are served beside the model."""

    task: TokenTask
    context_tokens: int
    adapters: list[str]


class RenderScores(msgspec.Struct, frozen=True, tag=True):
    """Render the scores of a ScoredPrompt as JSON; its arrays are the blobs, the answer is a
    Rendered."""

    shape: ScoreShape
    width: int
    shown: int
    by_id: bool


class RenderEmbeddings(msgspec.Struct, frozen=True, tag=True):
    """The vectors are the blobs; the answer is a Rendered."""

    base64: bool


class ValidateOutput(msgspec.Struct, frozen=True, tag=True):
    """Check finished texts against their grammar; the answer is a ValidationResult."""

    grammar: Grammar
    texts: list[str]


class ValidateCalls(msgspec.Struct, frozen=True, tag=True):
    """Check the arguments of calls, each against the schema whose number it has; the answer is a
    CallsValidation."""

    schemas: list[str]
    calls: list[tuple[int, str]]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker has loaded the tokenizer."""


class IngestHeader(msgspec.Struct, frozen=True, tag=True):
    """An IngestResult whose prompts follow as blobs; `tokens` has the length of each, `texts` what
    is echoed of it."""

    begun_ns: int
    request: GenerationRequest | None
    parsed_ns: int
    tokens: list[int]
    texts: list[str]
    refusal: PackedError | None


class TokensAnswer(msgspec.Struct, frozen=True, tag=True):
    """`refusal` is None if the body could be served."""

    refusal: PackedError | None


class Rendered(msgspec.Struct, frozen=True, tag=True):
    """The JSON is in the blobs."""


class ValidationResult(msgspec.Struct, frozen=True, tag=True):
    """`valid` is None if the texts cannot be checked."""

    valid: bool | None


class CallsValidation(msgspec.Struct, frozen=True, tag=True):
    """One verdict a call; None if it cannot be checked."""

    valid: list[bool | None]


class JobFailed(msgspec.Struct, frozen=True, tag=True):
    """The answer to a job that failed for a reason of ours; `error` has nothing of a client's."""

    error: str


Job = ReadBody | ReadTokens | RenderScores | RenderEmbeddings | ValidateOutput | ValidateCalls
ToWorker = Start | Job
JobResult = IngestHeader | TokensAnswer | Rendered | ValidationResult | CallsValidation
ToGateway = Ready | JobResult | JobFailed
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def send(connection: socket.socket, message: ToWorker | ToGateway, blobs: Sequence[Blob]) -> None:
    """Raises OSError when the other end is closed."""
    send_frame(connection, frame(message, blobs), blobs)


def frame(message: ToWorker | ToGateway, blobs: Sequence[Blob]) -> bytes:
    """What is sent before the blobs. Raises what MessagePack raises for a message that it cannot
    hold."""
    header = msgspec.msgpack.encode(message)
    numbers = [len(header), len(blobs), *map(len, blobs)]
    return b"".join(map(_NUMBER.pack, numbers)) + header


def send_frame(connection: socket.socket, start: bytes, blobs: Sequence[Blob]) -> None:
    """Raises OSError when the other end is closed."""
    connection.sendall(start)
    for blob in blobs:
        connection.sendall(blob)


def receive_job(connection: socket.socket) -> tuple[ToWorker, list[bytearray]] | None:
    """The worker's next job; None when the gateway has closed the socket."""
    found = _receive(connection)
    return found and (_to_worker.decode(found[0]), found[1])


def receive_answer(connection: socket.socket) -> tuple[ToGateway, list[bytearray]] | None:
    """The worker's answer; None when the worker has ended."""
    found = _receive(connection)
    return found and (_to_gateway.decode(found[0]), found[1])


def join_result(head: IngestHeader, blobs: list[bytearray]) -> IngestResult:
    """The IngestResult of a header and its blobs."""
    prompts = (PackedPrompt(*one) for one in zip(head.tokens, blobs, head.texts, strict=True))
    return IngestResult(
        begun_ns=head.begun_ns,
        request=head.request,
        parsed_ns=head.parsed_ns,
        prompts=tuple(prompts),
        refusal=head.refusal,
    )


def split_result(result: IngestResult) -> tuple[IngestHeader, list[Blob]]:
    """The header and the blobs of an IngestResult."""
    tokens = [prompt.tokens for prompt in result.prompts]
    head = IngestHeader(
        begun_ns=result.begun_ns,
        request=result.request,
        parsed_ns=result.parsed_ns,
        tokens=tokens,
        texts=[prompt.text for prompt in result.prompts],
        refusal=result.refusal,
    )
    return head, [prompt.ids for prompt in result.prompts]


def _receive(connection: socket.socket) -> tuple[bytearray, list[bytearray]] | None:
    try:
        start = _exactly(connection, 2 * _NUMBER.size)
        header_bytes, blobs = (_NUMBER.unpack_from(start, at)[0] for at in (0, _NUMBER.size))
        if blobs > _MOST_BLOBS:
            raise ValueError(f"{blobs} blobs: the stream is out of step")
        lengths = _exactly(connection, blobs * _NUMBER.size)
        header = _exactly(connection, header_bytes)
        sizes = [length for (length,) in _NUMBER.iter_unpack(lengths)]
        return header, [_exactly(connection, size) for size in sizes]
    except (EOFError, ConnectionError):
        return None


def _exactly(connection: socket.socket, count_bytes: int) -> bytearray:
    """Read `count_bytes`. Raises EOFError when the stream ends first."""
    data = bytearray(count_bytes)
    rest = memoryview(data)
    while rest:
        taken = connection.recv_into(rest)
        if not taken:
            raise EOFError
        rest = rest[taken:]
    return data
