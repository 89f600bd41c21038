"""A digest of a vocabulary: a gateway and its engines must have the same, or tokens that one sends
would be other text to the other."""

from __future__ import annotations

import hashlib

import msgspec

from service.engine.vocabulary import Vocabulary


def digest_of(vocabulary: Vocabulary) -> str:
    """64 hex digits, of all that makes tokens and texts of each other."""
    return hashlib.sha256(msgspec.msgpack.encode(vocabulary)).hexdigest()
