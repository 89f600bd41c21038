"""Frames of the TCP transport: a kind, a length, and so many bytes."""

from __future__ import annotations

import socket
import struct
from enum import IntEnum

import msgspec

from service.fleet.transfer.messages import PeerId

MAX_FRAME_BYTES = 64 << 20
"""A message with the longest prompt, or a block of the largest model, is far below this."""
MAX_HELLO_BYTES = 4096
"""Before it is known who is there."""

_HEADER = struct.Struct("!BI")
WRITE = struct.Struct("!16sQQI")  # key of the memory, epoch, ticket, block
ACK = struct.Struct("!QB")  # ticket, whether it was written


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    MESSAGE = 2
    WRITE = 3
    ACK = 4


_KINDS = frozenset(Kind)


class Hello(msgspec.Struct, frozen=True):
    """The first frame of a connection: who opens it, and the secret of the fleet."""

    peer: PeerId
    secret: bytes


class FrameError(Exception):
    """What came is no frame; the connection is closed."""


def pack(kind: Kind, *parts: bytes) -> bytes:
    """One frame."""
    body = b"".join(parts)
    assert len(body) <= MAX_FRAME_BYTES, len(body)
    return _HEADER.pack(kind, len(body)) + body


def read_frame(
    connection: socket.socket, most_bytes: int = MAX_FRAME_BYTES
) -> tuple[Kind, bytearray]:
    """The next frame. Raises FrameError, and OSError when the connection ends."""
    kind, length = _HEADER.unpack(_exactly(connection, _HEADER.size))
    if length > most_bytes or kind not in _KINDS:
        raise FrameError(f"a frame of kind {kind} with {length} bytes")
    return Kind(kind), _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        got = connection.recv_into(view[filled:])
        if not got:
            raise ConnectionError("the peer closed the connection")
        filled += got
    return data
