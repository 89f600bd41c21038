"""Digests of blocks: blake2b of 16 bytes, one a block, so that a flipped bit is found and its block
named; and one over all, so that a digest that is missing or changed is found too.

The digest of a block has its place in the prompt in it: two blocks that changed places are not what
was sent, although each is whole.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

DIGEST_BYTES = 16


def block_digest(place: int, data: bytes | memoryview) -> bytes:
    """Of the bytes of the block that is number `place` of its prompt."""
    salt = place.to_bytes(8, "little")
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, salt=salt).digest()


def total_digest(epoch: int, digests: Sequence[bytes]) -> bytes:
    """Of all blocks of a transfer, by their digests."""
    salt = epoch.to_bytes(16, "little")
    return hashlib.blake2b(b"".join(digests), digest_size=DIGEST_BYTES, salt=salt).digest()


def corrupt_places(said: Sequence[bytes], found: Sequence[bytes]) -> list[int]:
    """Indices of digests that differ; all beyond the shorter one differ."""
    longest = max(len(said), len(found))
    return [
        index
        for index in range(longest)
        if index >= len(said)
        or index >= len(found)
        or not hmac.compare_digest(said[index], found[index])
    ]
