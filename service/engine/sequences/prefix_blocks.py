"""A sequence's full blocks, as the prefix cache and the record know them.

Digests are computed as they are needed: a prompt whose first block is not cached is not hashed
to its end. While the cache is turned off, as the limits of a running engine may do, aliases are
still given: so the record says which prompts begin alike, and what the cache would be worth.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.engine.admission import Limits
from service.engine.kv.block_aliases import BlockAliases
from service.engine.kv.cpu_offload import CpuOffloadIndex
from service.engine.kv.prefix import Match, PrefixCache, namespace_of
from service.engine.sequences.fact_log import FactLog
from service.engine.sequences.request import Request
from telemetry.facts.step_parts import BlocksSealed

_MAX_PROMPT_ALIASES = 512
_DIGESTS_AT_ONCE = 64
_ALIASES_PER_BLOCK = 6  # for the cache, four times as many ghosts, and a reserve


def prefix_cache_of(limits: Limits) -> PrefixCache:
    """An empty cache, with the host tier that the limits allow."""
    slots = limits.host_slots
    offload = CpuOffloadIndex(slots, limits.retention) if slots else None
    return PrefixCache(
        limits.blocks_total,
        limits.block_tokens,
        limits.cache_identity,
        offload,
        limits.prefix_cache,
    )


class PrefixBlocks:
    """The only writer of `cache_root`, `cacheable`, `digests` and `recorded_aliases` of
    requests."""

    def __init__(self, limits: Limits, prefix: PrefixCache, log: FactLog) -> None:
        self._block_tokens = limits.block_tokens
        self._can_be_on = limits.prefix_cache
        self._prefix = prefix
        self._log = log
        waiting = limits.queue_limit_tokens // limits.block_tokens
        known = _ALIASES_PER_BLOCK * (limits.blocks_total + limits.host_slots)
        self._aliases = BlockAliases(known + waiting, prefix.knows)

    def open(self, request: Request) -> None:
        """Set the namespace in which a new request may share blocks, if it may."""
        submit = request.submit
        output = submit.prompt_output
        if output is not None and output.reads_every_row:
            return
        if submit.cache_prefix and self._can_be_on:
            namespace = namespace_of(submit.tenant, submit.cache_salt)
            request.cache_root = self._prefix.root(namespace, submit.adapter)

    def match(self, request: Request, now_ns: int) -> Match:
        """What the prefix cache has of a waiting request, without its last token: that one is
        always computed, because its logits are wanted. One that came while the cache was turned
        off may share blocks if it is on by now."""
        request.cacheable = request.is_named and self._prefix.enabled
        if not request.cacheable:
            return Match()
        blocks = (request.known_tokens - 1) // self._block_tokens
        return self._prefix.match(self._digests(request, blocks), now_ns)

    def register_computed(self, request: Request, tokens: int) -> None:
        """Offer the full blocks of the first `tokens` tokens for reuse; a step that computed
        them has been committed."""
        blocks = tokens // self._block_tokens
        if not request.is_named or blocks <= request.cached_blocks:
            return
        self._hash(request, blocks)
        if not request.cacheable:
            self.record_sealed(request, blocks)
            return
        for index in range(request.cached_blocks, blocks):
            digest, block = request.digests[index], request.blocks[index]
            self._prefix.register(digest, block, request.submit.tenant, index + 1)
        self.record_sealed(request, blocks)
        request.cached_blocks = blocks

    def record_sealed(self, request: Request, blocks: int) -> None:
        """Record aliases of those of the first `blocks` blocks that have none recorded yet."""
        first = len(request.recorded_aliases)
        if first < blocks:
            aliases = self._new_aliases(request, blocks)
            self._log.seal(BlocksSealed(request.seq_id, first, aliases))

    def prompt_aliases(self, request: Request) -> tuple[int, ...] | None:
        """Aliases of the prompt's full blocks, at most the first 512; the others are recorded
        when they are found or computed. None where blocks have no names."""
        if not request.is_named:
            return None
        blocks = min(_MAX_PROMPT_ALIASES, len(request.submit.prompt) // self._block_tokens)
        self._hash(request, blocks)
        return self._new_aliases(request, blocks)

    def _digests(self, request: Request, blocks: int) -> Iterator[bytes]:
        """Digests of the first `blocks` blocks, computed as far as the caller iterates."""
        for index in range(blocks):
            if index >= len(request.digests):
                self._hash(request, min(blocks, index + _DIGESTS_AT_ONCE))
            yield request.digests[index]

    def _hash(self, request: Request, blocks: int) -> None:
        """Compute the digests that are missing of the first `blocks` blocks."""
        missing = blocks - len(request.digests)
        if missing > 0:
            size = self._block_tokens
            tokens = request.tokens(len(request.digests) * size, missing * size)
            self._prefix.extend(request.digests, request.cache_root, tokens)

    def _new_aliases(self, request: Request, blocks: int) -> tuple[int, ...]:
        """Give aliases to those of the first `blocks` blocks that have none yet."""
        recorded = request.recorded_aliases
        parent = recorded[-1] if recorded else None
        new = self._aliases.of(request.digests[len(recorded) : blocks], parent)
        recorded += new
        return new
