"""Whether what a seal says can be, and whether the blocks that arrived are those that it means."""

from __future__ import annotations

from collections.abc import Sequence

from service.fleet.transfer.actions import Check
from service.fleet.transfer.digests import corrupt_places, total_digest
from service.fleet.transfer.messages import Seal
from service.fleet.wire.checks import MOST_ALTERNATIVES

_MOST_NS = 1 << 53
"""A hundred days, beyond which sums of such times would fit no fact."""


def is_possible(seal: Seal, vocab_tokens: int | None) -> bool:
    """Whether an engine with a vocabulary of that size can say it; None: the size is not known."""
    first, remote = seal.first, seal.remote
    top = first.top or ()
    ids = (first.token_id, *(one.token_id for one in top))
    if vocab_tokens is not None and not 0 <= min(ids) <= max(ids) < vocab_tokens:
        return False
    parts_ns = (remote.queue_ns, remote.compute_ns, remote.exposed_ns, remote.hidden_ns)
    return len(top) <= MOST_ALTERNATIVES and all(0 <= ns < _MOST_NS for ns in parts_ns)


def corrupt_blocks(check: Check, found: Sequence[bytes]) -> int:
    """Blocks of a check whose digest, as it was `found` here, is not what the seal says; all of
    them if the seal has other digests than were asked for, or does not hold together."""
    if total_digest(check.epoch, check.digests) != check.total:
        return len(check.blocks)
    return len(corrupt_places(check.digests, found))
