"""Which evicted prefix blocks live on in host memory, and for how long.

The retention policy is per tenant: nobody's blocks may take more than a share of the
slots, and none is kept longer than its time to live. Within a tenant, and over all, the
least recently used block goes first. Contents are the device's business: this is only the
book of who is in which slot.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long and how much the host tier keeps for one tenant."""

    tenant_share: float = 1.0
    ttl_ns: int | None = None

    def slots_of(self, slots: int) -> int:
        return max(1, int(slots * self.tenant_share))


@dataclass(frozen=True, slots=True)
class _Kept:
    slot: int
    tenant: str
    since_ns: int


class HostTier:
    """The book of the host slots; never gives one slot to two digests."""

    def __init__(self, slots: int, retention: Retention) -> None:
        assert slots > 0, slots
        self.slots = slots
        self._retention = retention
        self._free = list(range(slots - 1, -1, -1))
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._by_tenant: Counter[str] = Counter()

    @property
    def used(self) -> int:
        return len(self._kept)

    def has(self, digest: bytes, now_ns: int) -> bool:
        kept = self._kept.get(digest)
        return kept is not None and not self._expired(kept, now_ns)

    def slot_of(self, digest: bytes) -> int:
        return self._kept[digest].slot

    def put(self, digest: bytes, tenant: str, now_ns: int) -> tuple[int | None, list[bytes]]:
        """A slot for an evicted block, and whose digests had to leave for it.

        None when the block is here already or every slot is pinned.
        """
        dropped = self._drop_expired(now_ns)
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return None, dropped
        if self._by_tenant[tenant] >= self._retention.slots_of(self.slots):
            dropped.append(self._drop(next(d for d, k in self._kept.items() if k.tenant == tenant)))
        elif not self._free and self._kept:
            dropped.append(self._drop(next(iter(self._kept))))
        if not self._free:
            return None, dropped
        slot = self._free.pop()
        self._kept[digest] = _Kept(slot, tenant, now_ns)
        self._by_tenant[tenant] += 1
        return slot, dropped

    def pin(self, digest: bytes) -> int:
        """Take a block's entry out of the book; its slot stays taken until `unpin`."""
        kept = self._kept.pop(digest)
        self._by_tenant[kept.tenant] -= 1
        return kept.slot

    def unpin(self, slot: int) -> None:
        """The copy out of the slot is queued: later copies into it come after it."""
        self._free.append(slot)

    def clear(self) -> None:
        for digest in list(self._kept):
            self._drop(digest)

    def check(self) -> None:
        slots = [kept.slot for kept in self._kept.values()]
        assert len(set(slots)) == len(slots), "two blocks share a host slot"
        assert not set(slots) & set(self._free), "a host slot is free and taken"
        assert len(slots) + len(self._free) == self.slots, "a host slot is lost"
        assert +Counter(k.tenant for k in self._kept.values()) == +self._by_tenant

    def _expired(self, kept: _Kept, now_ns: int) -> bool:
        ttl_ns = self._retention.ttl_ns
        return ttl_ns is not None and now_ns - kept.since_ns > ttl_ns

    def _drop_expired(self, now_ns: int) -> list[bytes]:
        if self._retention.ttl_ns is None:
            return []
        old = [digest for digest, kept in self._kept.items() if self._expired(kept, now_ns)]
        return [self._drop(digest) for digest in old]

    def _drop(self, digest: bytes) -> bytes:
        self._free.append(self.pin(digest))
        return digest
