"""Prefixes of a prompt as keyed hashes, the same in every process of a fleet.

The prefix cache names a block by a digest of its tokens and of the block before it, in the tenant's
namespace. Each `STRIDE_BLOCKS`-th of them is an *anchor*: 64 bits of its hash under the fleet's
secret key. Anchors are what engines report and what facts hold: without the key nobody can try
prompts against them, and they are small. Prefixes of different tenants, salts or models never have
an anchor in common.

    tokens   0        64        128       192     210
             |---------|---------|---------|----|
    anchors            a0        a1        a2          (blocks of 16 tokens)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from service.engine.kv.prefix import chain_digests, chain_root, namespace_of
from telemetry.facts.fleet.routing_records import ANCHOR_BLOCKS

STRIDE_BLOCKS = ANCHOR_BLOCKS
MAX_ANCHORS = 256
"""Most anchors of one prompt: what lies behind the last of them is not looked for."""
_BYTES = 8


def anchor_of(digest: bytes, key: bytes) -> int:
    """The anchor of the prefix cache's digest of a block; `key` has at most 64 bytes."""
    return int.from_bytes(hashlib.blake2b(digest, digest_size=_BYTES, key=key).digest(), "big")


def anchors_of(
    tokens: Sequence[int],
    block_tokens: int,
    *,
    key: bytes,
    identity: str,
    tenant: str = "",
    salt: str = "",
    adapter: int = 0,
) -> tuple[int, ...]:
    """The anchors of a prompt's prefixes, shortest first; without its last token, which is always
    computed. `identity` is that of the engines' caches (`Limits.cache_identity`)."""
    stride = STRIDE_BLOCKS * block_tokens
    count = min(MAX_ANCHORS, (len(tokens) - 1) // stride)
    if count <= 0:
        return ()
    root = chain_root(identity, namespace_of(tenant, salt), adapter)
    digests: list[bytes] = []
    chain_digests(digests, root, tokens[: count * stride], block_tokens)
    return tuple(anchor_of(digest, key) for digest in digests[STRIDE_BLOCKS - 1 :: STRIDE_BLOCKS])
