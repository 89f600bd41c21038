"""What gateway and ingest workers say to each other, over one blocking stream socket each.

A message is a MessagePack header and some blobs, which are what is large: bodies one way, token
ids the other. Blobs are not part of the header because whoever encodes or decodes them holds
the interpreter's lock, while a socket is read and written without it.

    header length (4 bytes) | blobs (4 bytes) | blob lengths (4 bytes each) | header | blobs
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import msgspec

from service.config.settings import ModelRef
from service.engine.plan import Grammar
from service.gateway.ingest.prompting import PackedPrompt, Reading, Refusal
from service.gateway.ingest.schemas import GenerationRequest, Operation

_NUMBER = struct.Struct("<I")
_MOST_BLOBS = 4096

Blob = bytes | bytearray


class Start(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker; it answers Ready when it has read the tokenizer."""

    model: ModelRef


class ReadBody(msgspec.Struct, frozen=True, tag=True):
    """The body is the one blob; the answer is a ReadingHead, with a blob a prompt."""

    operation: Operation
    context_tokens: int | None


class Judge(msgspec.Struct, frozen=True, tag=True):
    """Whether finished texts obey their grammar; the answer is a Verdict."""

    grammar: Grammar
    texts: list[str]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker can work."""


class ReadingHead(msgspec.Struct, frozen=True, tag=True):
    """A Reading whose prompts, of so many tokens each, follow as blobs."""

    begun_ns: int
    request: GenerationRequest | None
    parsed_ns: int
    tokens: list[int]
    refusal: Refusal | None


class Verdict(msgspec.Struct, frozen=True, tag=True):
    """None where it cannot be told."""

    valid: bool | None


ToWorker = Start | ReadBody | Judge
ToGateway = Ready | ReadingHead | Verdict
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def send(connection: socket.socket, message: ToWorker | ToGateway, blobs: Sequence[Blob]) -> None:
    """Raises OSError when the other end is gone."""
    header = msgspec.msgpack.encode(message)
    numbers = [len(header), len(blobs), *map(len, blobs)]
    connection.sendall(b"".join(map(_NUMBER.pack, numbers)) + header)
    for blob in blobs:
        connection.sendall(blob)


def receive_job(connection: socket.socket) -> tuple[ToWorker, list[bytearray]] | None:
    """The worker's next job; None when there will be none."""
    found = _receive(connection)
    return found and (_to_worker.decode(found[0]), found[1])


def receive_answer(connection: socket.socket) -> tuple[ToGateway, list[bytearray]] | None:
    """The worker's answer; None when it is gone."""
    found = _receive(connection)
    return found and (_to_gateway.decode(found[0]), found[1])


def reading_of(head: ReadingHead, blobs: list[bytearray]) -> Reading:
    """The whole reading again."""
    prompts = (PackedPrompt(*pair) for pair in zip(head.tokens, blobs, strict=True))
    return Reading(
        begun_ns=head.begun_ns,
        request=head.request,
        parsed_ns=head.parsed_ns,
        prompts=tuple(prompts),
        refusal=head.refusal,
    )


def head_of(reading: Reading) -> tuple[ReadingHead, list[Blob]]:
    """A reading in two parts, as it is sent."""
    tokens = [prompt.tokens for prompt in reading.prompts]
    head = ReadingHead(
        begun_ns=reading.begun_ns,
        request=reading.request,
        parsed_ns=reading.parsed_ns,
        tokens=tokens,
        refusal=reading.refusal,
    )
    return head, [prompt.ids for prompt in reading.prompts]


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
    """Raises EOFError when the stream ends before."""
    data = bytearray(count_bytes)
    rest = memoryview(data)
    while rest:
        taken = connection.recv_into(rest)
        if not taken:
            raise EOFError
        rest = rest[taken:]
    return data
