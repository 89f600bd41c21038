"""A digest of a vocabulary: a gateway and its engines must have the same, or tokens that one sends
would be other text to the other."""

from __future__ import annotations

import hashlib

import msgspec

from service.engine.vocabulary import Vocabulary
from service.fleet.wire.messages import Welcome


def digest_of(vocabulary: Vocabulary) -> str:
    """64 hex digits, of all that makes tokens and texts of each other."""
    return hashlib.sha256(msgspec.msgpack.encode(vocabulary)).hexdigest()


def mismatch_of(welcome: Welcome, model: str, vocabulary: str) -> str | None:
    """What of a node's model or vocabulary is not its gateway's, in words; None: nothing."""
    if welcome.model != model:
        return f"it serves the model {welcome.model!r} and this gateway {model!r}"
    if welcome.vocabulary != vocabulary:
        return (
            f"its vocabulary ({welcome.vocabulary[:12]}) is not this gateway's "
            f"({vocabulary[:12]}): give both the same files of the model"
        )
    return None
