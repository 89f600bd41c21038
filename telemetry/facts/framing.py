"""Cuts a byte stream into messages: each is MessagePack behind a 4-byte little-endian length.

Used between gateway and engine process, and between an attached engine and its sidecar.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


def framed(payload: bytes) -> bytes:
    """The payload behind its length."""
    return _LENGTH.pack(len(payload)) + payload


class Unframer:
    """Cuts a byte stream back into message payloads of at most `most_bytes` each, which may be
    changed between two payloads."""

    def __init__(self, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.most_bytes = most_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Payloads completed by `data`. Raises ValueError on an impossible length."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self.most_bytes:
                raise ValueError(f"frame of {length} bytes: the stream is out of step")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]
