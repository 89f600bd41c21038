"""Which evicted prefix blocks live on in host memory, and for how long.

The retention policy is per tenant: nobody's blocks may take more than a share of the
slots, and none is kept longer than its time to live. Within a tenant, and over all, the
least recently used block goes first. Contents are the device's business: this is only the
book of who is in which slot.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long and how much the host tier keeps for one tenant."""

    tenant_share: float = 1.0
    ttl_ns: int | None = None

    def slots_of(self, slots: int) -> int:
        return max(1, int(slots * self.tenant_share))


@dataclass(slots=True)
class _Kept:
    """`used` numbers the uses of all blocks, so that it tells whose was longer ago."""

    slot: int
    tenant: str
    since_ns: int
    used: int


class HostTier:
    """The book of the host slots; never gives one slot to two digests."""

    def __init__(self, slots: int, retention: Retention) -> None:
        assert slots > 0, slots
        self.slots = slots
        self._retention = retention
        self._free = list(range(slots - 1, -1, -1))
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._by_age: OrderedDict[bytes, None] = OrderedDict()  # put longest ago first
        self._of_tenant: dict[str, OrderedDict[bytes, None]] = {}  # used longest ago first
        self._uses = 0

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
        self._uses += 1
        if digest in self._kept:
            kept = self._kept[digest]
            kept.used = self._uses
            self._kept.move_to_end(digest)
            self._of_tenant[kept.tenant].move_to_end(digest)
            return None, dropped
        of_tenant = self._of_tenant.get(tenant)
        if of_tenant is not None and len(of_tenant) >= self._retention.slots_of(self.slots):
            dropped.append(self._drop(next(iter(of_tenant))))
        elif not self._free and self._kept:
            dropped.append(self._drop(next(iter(self._kept))))
        if not self._free:
            return None, dropped
        slot = self._free.pop()
        self._kept[digest] = _Kept(slot, tenant, now_ns, self._uses)
        self._by_age[digest] = None
        self._of_tenant.setdefault(tenant, OrderedDict())[digest] = None
        return slot, dropped

    def pin(self, digest: bytes) -> int:
        """Take a block's entry out of the book; its slot stays taken until `unpin`."""
        kept = self._kept.pop(digest)
        del self._by_age[digest]
        of_tenant = self._of_tenant[kept.tenant]
        del of_tenant[digest]
        if not of_tenant:
            del self._of_tenant[kept.tenant]
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
        assert self._by_age.keys() == self._kept.keys(), "a block has no age"
        owners = [(tenant, d) for tenant, digests in self._of_tenant.items() for d in digests]
        assert len(owners) == len(self._kept), f"{len(owners)} owned, {len(self._kept)} kept"
        assert all(self._kept[digest].tenant == tenant for tenant, digest in owners)

    def _expired(self, kept: _Kept, now_ns: int) -> bool:
        ttl_ns = self._retention.ttl_ns
        return ttl_ns is not None and now_ns - kept.since_ns > ttl_ns

    def _drop_expired(self, now_ns: int) -> list[bytes]:
        """Those put too long ago, the least recently used first."""
        if self._retention.ttl_ns is None:
            return []
        old = list(takewhile(lambda one: self._expired(self._kept[one], now_ns), self._by_age))
        old.sort(key=lambda digest: self._kept[digest].used)
        return [self._drop(digest) for digest in old]

    def _drop(self, digest: bytes) -> bytes:
        self._free.append(self.pin(digest))
        return digest
