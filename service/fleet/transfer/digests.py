"""Digests of blocks: BLAKE3 of 16 bytes, one a block, so that a flipped bit is found and its block
named; and one over all, so that a digest that is missing or changed is found too.

The digest of a block has its place in the prompt in it: two blocks that changed places are not what
was sent, although each is whole.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from blake3 import blake3

DIGEST_BYTES = 16


def block_digest(place: int, data: bytes | memoryview) -> bytes:
    """The digest of the bytes of the block that is number `place` of its prompt."""
    hashed = blake3(place.to_bytes(8, "little"))
    hashed.update(data)
    return hashed.digest(length=DIGEST_BYTES)


def total_digest(epoch: int, digests: Sequence[bytes]) -> bytes:
    """The digest of all blocks of a transfer, made of their digests."""
    hashed = blake3(epoch.to_bytes(16, "little"))
    hashed.update(b"".join(digests))
    return hashed.digest(length=DIGEST_BYTES)


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
