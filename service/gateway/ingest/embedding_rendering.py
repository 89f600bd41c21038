"""Embeddings as JSON; a client chooses how many, so this runs where bodies are read."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec


def render_embeddings(vectors: Sequence[bytes | bytearray], base64: bool) -> bytes:
    """The list `data` of an answer. `vectors` are float32 in the machine's byte order, which is
    that of OpenAI's base64 too (little endian)."""
    return msgspec.json.encode(
        [
            {"object": "embedding", "index": index, "embedding": _value(vector, base64)}
            for index, vector in enumerate(vectors)
        ]
    )


def _value(vector: bytes | bytearray, base64: bool) -> Any:
    return b64encode(vector).decode() if base64 else array("f", bytes(vector)).tolist()
