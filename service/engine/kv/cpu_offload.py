"""CPU offload: which evicted prefix blocks are kept in CPU memory, in which slot, how long.

The retention policy is per tenant: the blocks of a tenant take at most a share of the slots, and
none is kept longer than its time to live. Within a tenant, and over all, the least recently used
block is dropped first. This is only the index; the device copies the contents.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice, takewhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long and how much is kept for one tenant; `ttl_ns` None is for ever."""

    tenant_share: float = 1.0
    ttl_ns: int | None = None

    def slots_of(self, slots: int) -> int:
        """Slots of one tenant, of `slots` in all; at least 1."""
        return max(1, int(slots * self.tenant_share))


@dataclass(slots=True)
class _Entry:
    """`used` is the number of the last use, counted over all blocks: a smaller one is older."""

    slot: int
    tenant: str
    since_ns: int
    used: int


class CpuOffloadIndex:
    """Slot of each kept digest. A slot has at most one digest."""

    def __init__(self, slots: int, retention: Retention) -> None:
        assert slots > 0, slots
        self.slots = slots
        self._retention = retention
        self._free = list(range(slots - 1, -1, -1))
        self._kept: OrderedDict[bytes, _Entry] = OrderedDict()
        self._by_age: OrderedDict[bytes, None] = OrderedDict()  # oldest first
        self._of_tenant: dict[str, OrderedDict[bytes, None]] = {}  # least recently used first
        self._uses = 0

    @property
    def used(self) -> int:
        return len(self._kept)

    def has(self, digest: bytes, now_ns: int) -> bool:
        """Whether a block is kept and its time to live is not over."""
        kept = self._kept.get(digest)
        return kept is not None and not self._expired(kept, now_ns)

    def slot_of(self, digest: bytes) -> int:
        return self._kept[digest].slot

    def put(self, digest: bytes, tenant: str, now_ns: int) -> tuple[int | None, list[bytes]]:
        """A slot for an evicted block, and the digests that were dropped, expired ones first.

        None when the block is kept already or every slot is pinned.
        """
        dropped = self.drop_expired(now_ns)
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
        self._kept[digest] = _Entry(slot, tenant, now_ns, self._uses)
        self._by_age[digest] = None
        self._of_tenant.setdefault(tenant, OrderedDict())[digest] = None
        return slot, dropped

    def drop_expired(self, now_ns: int, most: int | None = None) -> list[bytes]:
        """Drop what is older than the time to live, at most so many of the oldest; returned least
        recently used first."""
        if self._retention.ttl_ns is None:
            return []
        expired = takewhile(lambda one: self._expired(self._kept[one], now_ns), self._by_age)
        old = sorted(islice(expired, most), key=lambda digest: self._kept[digest].used)
        return [self._drop(digest) for digest in old]

    @property
    def next_expiry_ns(self) -> int | None:
        """When the oldest block's time to live is over; None where none ever is."""
        ttl_ns, oldest = self._retention.ttl_ns, next(iter(self._by_age), None)
        if ttl_ns is None or oldest is None:
            return None
        return self._kept[oldest].since_ns + ttl_ns + 1

    def pin(self, digest: bytes) -> int:
        """Remove a block's entry and return its slot, which stays taken until `unpin`."""
        kept = self._kept.pop(digest)
        del self._by_age[digest]
        of_tenant = self._of_tenant[kept.tenant]
        del of_tenant[digest]
        if not of_tenant:
            del self._of_tenant[kept.tenant]
        return kept.slot

    def unpin(self, slot: int) -> None:
        """Free a slot. The copy out of it is queued, so that later copies into it come after."""
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

    def _expired(self, kept: _Entry, now_ns: int) -> bool:
        ttl_ns = self._retention.ttl_ns
        return ttl_ns is not None and now_ns - kept.since_ns > ttl_ns

    def _drop(self, digest: bytes) -> bytes:
        self._free.append(self.pin(digest))
        return digest
