"""The prefix cache: full blocks of computed tokens, found again by what they contain.

A block's digest is a hash of its tokens and of the digest of the block before it, so equal
digests mean equal prefixes. The chain starts from the cache's identity (model, tokenizer, cache
dtype), the number of the request's adapter (whose weights never change) and its namespace (tenant
and salt), so a block is only ever found by a request of the same identity, adapter and namespace.
Hash-chained blocks with LRU eviction are vLLM's automatic prefix caching; the salt is its
`cache_salt`.

Digests of evicted blocks are remembered for a while in the *ghost*: blocks of a prompt that are
found there are hits that a larger cache would have had (the ghost list of ARC, Megiddo and Modha,
FAST 2003, used here as a gauge instead of a policy). A block whose time to live in CPU memory is
over is in no ghost: a larger cache would not have it either. So nothing but who watches can tell
when such blocks are dropped, and an engine may drop them while it is idle, which no record shows.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.engine.kv.blocks import BlockPool
from service.engine.kv.cpu_offload import CpuOffloadIndex
from service.engine.kv.held_prefixes import HeldPrefixes
from service.engine.plan import BlockCopy, CopyKind

_DIGEST_BYTES = 16
_TOKEN_BYTES = 8
_GHOST_FACTOR = 4
_EXPIRED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Match:
    """The known prefix of a chain: `blocks` on the device, then `host_digests` in CPU memory,
    then `ghost_blocks` that a larger cache would still have."""

    blocks: tuple[int, ...] = ()
    host_digests: tuple[bytes, ...] = ()
    ghost_blocks: int = 0


def namespace_of(tenant: str, salt: str) -> str:
    """Within which requests may share blocks."""
    return f"{tenant}\0{salt}"


def chain_root(identity: str, namespace: str, adapter: int = 0) -> bytes:
    """The digest from which chains of a cache's identity, a namespace and an adapter start."""
    seed = f"{len(identity)}:{identity}{adapter}:{namespace}".encode()
    return hashlib.blake2b(seed, digest_size=_DIGEST_BYTES).digest()


def chain_digests(
    digests: list[bytes], root: bytes, tokens: Sequence[int], block_tokens: int
) -> None:
    """Append the digests of the full blocks of `tokens`, which follow those of `digests`."""
    packed = memoryview(array("q", tokens)).cast("B")
    size = block_tokens * _TOKEN_BYTES
    last = digests[-1] if digests else root
    for end in range(size, len(packed) + 1, size):
        digest = hashlib.blake2b(last, digest_size=_DIGEST_BYTES)
        digest.update(packed[end - size : end])
        last = digest.digest()
        digests.append(last)


class PrefixCache:
    """Owns the map from digests to blocks; the pool counts who uses a block."""

    def __init__(
        self,
        blocks_total: int,
        block_tokens: int,
        identity: str,
        offload: CpuOffloadIndex | None = None,
        enabled: bool = True,
    ) -> None:
        self.pool = BlockPool(blocks_total, self._evicted)
        self.enabled = enabled
        self._block_tokens = block_tokens
        self._identity = identity
        self._offload = offload
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._tenant_of: dict[bytes, str] = {}
        self._ghost: OrderedDict[bytes, None] = OrderedDict()
        self._ghost_limit = _GHOST_FACTOR * blocks_total
        self._copies: list[BlockCopy] = []
        self._unready: dict[int, BlockCopy] = {}
        self._now_ns = 0
        self._watch: HeldPrefixes | None = None

    def watch(self, stride: int) -> HeldPrefixes:
        """Keep account, from now on, of which of each `stride` blocks of a chain are held."""
        self._watch = HeldPrefixes(stride)
        return self._watch

    def root(self, namespace: str, adapter: int = 0) -> bytes:
        """The digest from which chains of a namespace and an adapter start."""
        return chain_root(self._identity, namespace, adapter)

    def extend(self, digests: list[bytes], root: bytes, tokens: Sequence[int]) -> None:
        """Append the digests of the full blocks of `tokens`, which follow those of `digests`;
        `root` is of the namespace."""
        chain_digests(digests, root, tokens, self._block_tokens)

    def match(self, digests: Iterable[bytes], now_ns: int) -> Match:
        """The longest known prefix of a chain; changes nothing."""
        if not self.enabled:
            return Match()
        blocks: list[int] = []
        host: list[bytes] = []
        ghosts = 0
        for digest in digests:
            block = self._block_of.get(digest)
            if block is not None and not host and not ghosts:
                blocks.append(block)
            elif not ghosts and self._is_offloaded(digest, now_ns):
                host.append(digest)
            elif digest in self._ghost or block is not None:
                ghosts += 1
            else:
                break
        return Match(tuple(blocks), tuple(host), ghosts)

    def knows(self, digest: bytes) -> bool:
        """Whether a block, CPU memory or the ghost has it."""
        if digest in self._block_of or digest in self._ghost:
            return True
        return self._offload is not None and self._offload.has(digest, self._now_ns)

    def cost(self, match: Match, blocks: int) -> int:
        """How many available blocks a table of `blocks` blocks with this match would take."""
        revived = sum(self.pool.is_cached(block) for block in match.blocks)
        return blocks - len(match.blocks) + revived

    def acquire(self, match: Match, blocks: int, now_ns: int) -> list[int]:
        """A table of `blocks` blocks that begins with the match. Raises OutOfBlocks.

        Offloaded blocks are pinned before blocks are allocated, because allocation may evict into
        CPU memory; their slots are freed after the copies out of them are queued. What is copied
        in is registered when its step is committed, like all that a step computes: a step may
        fail. Until then it is held nowhere.
        """
        self._now_ns = now_ns
        self.pool.retain(match.blocks)
        slots = (
            [self._offload.pin(digest) for digest in match.host_digests] if self._offload else []
        )
        for digest in match.host_digests:
            self._lost(digest)
        self.drop_expired(now_ns)
        fresh = self.pool.allocate(blocks - len(match.blocks))
        for slot, block in zip(slots, fresh, strict=False):
            assert self._offload is not None
            self._copies.append(BlockCopy(CopyKind.LOAD, block, slot))
            self._offload.unpin(slot)
        return [*match.blocks, *fresh]

    def grow(self, count: int, now_ns: int) -> list[int]:
        """`count` blocks without contents. Raises OutOfBlocks."""
        self._now_ns = now_ns
        self.drop_expired(now_ns)
        return self.pool.allocate(count)

    def reserve(self, count: int, epoch: int, now_ns: int) -> list[int]:
        """`count` blocks for another engine to write, in quarantine. Raises OutOfBlocks."""
        self._now_ns = now_ns
        self.drop_expired(now_ns)
        return self.pool.quarantine(count, epoch)

    def drop_expired(self, now_ns: int, most: int | None = _EXPIRED_AT_ONCE) -> None:
        """Forget blocks in CPU memory whose time to live is over: `most` of them at once, since it
        takes time, or all."""
        if self._offload is not None:
            for digest in self._offload.drop_expired(now_ns, most):
                self._lost(digest)

    @property
    def next_expiry_ns(self) -> int | None:
        """When `drop_expired` has something to do; None: never."""
        return None if self._offload is None else self._offload.next_expiry_ns

    def register(self, digest: bytes, block: int, tenant: str, depth: int = 0) -> None:
        """`block` has the computed contents with this digest, and may be shared from now on. It is
        the `depth`-th of its chain, from 1; 0: not known."""
        if not self.enabled or digest in self._block_of or block in self._digest_of:
            return
        self._block_of[digest] = block
        self._digest_of[block] = digest
        self._tenant_of[digest] = tenant
        self._ghost.pop(digest, None)
        self.pool.keep(block)
        if self._watch is not None:
            self._watch.came(digest, depth)

    def flush(self) -> int:
        """Forget all contents, those in CPU memory and the ghost too; returns the number of unused
        cached blocks that became free."""
        self._block_of.clear()
        self._digest_of.clear()
        self._tenant_of.clear()
        self._ghost.clear()
        self._copies.clear()
        self._unready.clear()
        if self._offload is not None:
            self._offload.clear()
        if self._watch is not None:
            self._watch.flushed()
        return self.pool.forget_cached()

    def copied(self, copies: Sequence[BlockCopy]) -> None:
        """The step with these copies was committed: blocks that it saved may be loaded."""
        for copy in copies:
            if self._unready.get(copy.host_slot) is copy:
                del self._unready[copy.host_slot]

    @property
    def has_offload(self) -> bool:
        """Whether evicted blocks are copied to CPU memory, by the next step."""
        return self._offload is not None

    @property
    def has_copies(self) -> bool:
        """Whether the next launched step has copies to make."""
        return bool(self._copies)

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Copies that the next launched step must make first, in this order."""
        taken, self._copies = tuple(self._copies), []
        return taken

    def check(self) -> None:
        """Walk the index; raises AssertionError when it is inconsistent."""
        assert len(self._block_of) == len(self._digest_of) == len(self._tenant_of)
        for digest, block in self._block_of.items():
            assert self._digest_of[block] == digest, f"block {block} has two names"
        assert len(self._ghost) <= self._ghost_limit, "the ghost is larger than its bound"
        if self._offload is not None:
            self._offload.check()

    def _evicted(self, block: int) -> None:
        """The pool evicts a cached block: it is offloaded, or remembered in the ghost."""
        self.drop_expired(self._now_ns, None)  # whatever was dropped before, the rest is the same
        digest = self._digest_of.pop(block)
        del self._block_of[digest]
        tenant = self._tenant_of.pop(digest)
        if self._offload is not None and not self._offload.has(digest, self._now_ns):
            slot, dropped = self._offload.put(digest, tenant, self._now_ns)
            for gone in dropped:
                self._remember(gone)
            if slot is not None:
                copy = BlockCopy(CopyKind.SAVE, block, slot)
                self._unready[slot] = copy
                self._copies.append(copy)
                return
            self._remember(digest)
        elif self._offload is None:
            self._remember(digest)

    def _is_offloaded(self, digest: bytes, now_ns: int) -> bool:
        """Whether CPU memory has it, and the step that saved it is committed."""
        if self._offload is None or not self._offload.has(digest, now_ns):
            return False
        return self._offload.slot_of(digest) not in self._unready

    def _lost(self, digest: bytes) -> None:
        """CPU memory or the device has it no more; perhaps the other one has."""
        if self._watch is not None and digest not in self._block_of:
            self._watch.went(digest)

    def _remember(self, digest: bytes) -> None:
        """It had to go to make room."""
        if digest in self._block_of:
            return
        self._lost(digest)
        self._ghost[digest] = None
        self._ghost.move_to_end(digest)
        if len(self._ghost) > self._ghost_limit:
            self._ghost.popitem(last=False)
