"""The pool of KV blocks: which are free, and how many requests use each of the others.

Blocks are numbered 0 .. total - 1. A block is in one of four states:

    free         no request uses it, its contents mean nothing
    used         one or more live requests use it (a shared prefix has a reference for each)
    cached       no request uses it, but its contents are kept for reuse until memory is needed
    quarantined  another engine may write it, in the transfer `epoch`; it is nobody's until none of
                 these writes can come any more

The pool does not know contents: the prefix cache marks a block as worth keeping (`keep`), and is
called when it is evicted (`on_evict`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_tokens)


class OutOfBlocks(Exception):
    """More blocks were asked for than are available; callers check `available` first."""


class BlockPool:
    """Reference-counted blocks; free ones go out last-in first-out, then the cached ones,
    least recently used first.

    Last-in first-out, because a block that was just in use is still warm in the caches
    of the machine.
    """

    def __init__(self, total: int, on_evict: Callable[[int], None] | None = None) -> None:
        assert total > 0, total
        self.total = total
        self._on_evict = on_evict
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._kept: set[int] = set()
        self._references = [0] * total
        self._used = 0
        self._quarantined: dict[int, int] = {}  # epoch of each

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give now: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that live requests use."""
        return self._used

    @property
    def free(self) -> int:
        """Blocks without contents."""
        return len(self._free)

    @property
    def quarantined(self) -> int:
        """Blocks that another engine may write."""
        return len(self._quarantined)

    @property
    def cached(self) -> int:
        """Blocks that no request uses but whose contents are kept for reuse."""
        return len(self._cached)

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one reference. Raises OutOfBlocks."""
        assert count >= 0, count
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks wanted, {self.available} of {self.total} available")
        taken = [self._take() for _ in range(count)]
        self._conserve()
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block, which must be used or cached."""
        for block in blocks:
            if self._references[block] == 0:
                assert block in self._cached, self._describe(block)
                del self._cached[block]
                self._used += 1
            self._references[block] += 1
        self._conserve()

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference from each block; kept ones without references stay cached.

        The last block of a table is released first, so that it is evicted first: a prefix
        is of no use without its beginning.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, self._describe(block)
            self._references[block] -= 1
            if self._references[block]:
                continue
            self._used -= 1
            if block in self._kept:
                self._cached[block] = None
            else:
                self._free.append(block)
        self._conserve()

    def quarantine(self, count: int, epoch: int) -> list[int]:
        """Take `count` blocks that another engine may write in transfer `epoch`. Raises
        OutOfBlocks."""
        blocks = self.allocate(count)
        for block in blocks:
            self._references[block] = 0
            self._quarantined[block] = epoch
        self._used -= count
        self._conserve()
        return blocks

    def adopt(self, blocks: Sequence[int], epoch: int) -> None:
        """The blocks of transfer `epoch` have what a request needs: each is used now, with one
        reference."""
        for block in blocks:
            assert self._quarantined.get(block) == epoch, self._describe(block)
            del self._quarantined[block]
            self._references[block] = 1
        self._used += len(blocks)
        self._conserve()

    def end_quarantine(self, blocks: Sequence[int], epoch: int) -> None:
        """No write of transfer `epoch` can come any more: its blocks are free."""
        for block in reversed(blocks):
            assert self._quarantined.get(block) == epoch, self._describe(block)
            del self._quarantined[block]
            self._free.append(block)
        self._conserve()

    def epoch_of(self, block: int) -> int | None:
        """The transfer that may write the block; None for a block that is not in quarantine."""
        return self._quarantined.get(block)

    def keep(self, block: int) -> None:
        """Keep this used block cached when its last reference is released."""
        assert self._references[block] > 0, self._describe(block)
        self._kept.add(block)

    def forget_cached(self) -> int:
        """Free every cached block and keep no used one; returns how many were cached."""
        dropped = len(self._cached)
        self._free += reversed(self._cached)
        self._cached.clear()
        self._kept.clear()
        return dropped

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Walk the whole pool against the block tables of all live requests."""
        expected = [0] * self.total
        for table in held:
            for block in table:
                expected[block] += 1
        if self._references != expected:
            block = next(b for b in range(self.total) if self._references[b] != expected[b])
            raise AssertionError(
                f"{self._describe(block)}, but live requests hold {expected[block]}"
            )
        used = {block for block, references in enumerate(expected) if references}
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert not free & self._cached.keys(), "a block is free and cached"
        assert not free & used, "a used block is free"
        assert not used & self._cached.keys(), "a used one is cached"
        assert len(used) == self._used, f"{len(used)} blocks are used, {self._used} counted"
        apart = self._quarantined.keys()
        assert not apart & (free | used | self._cached.keys()), "a block in quarantine is not apart"
        assert self._cached.keys() <= self._kept, "a block is cached that is not kept"
        self._conserve()

    def _conserve(self) -> None:
        """free + cached + used + quarantined = total."""
        counted = len(self._free) + len(self._cached) + self._used + len(self._quarantined)
        assert counted == self.total, self._describe(0)

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._kept.discard(block)
            if self._on_evict is not None:
                self._on_evict(block)
        assert self._references[block] == 0, self._describe(block)
        self._references[block] = 1
        self._used += 1
        return block

    def _describe(self, block: int) -> str:
        return (
            f"block {block} has {self._references[block]} references; "
            f"{self.used} used + {len(self._free)} free + {self.cached} cached + "
            f"{self.quarantined} quarantined of {self.total}"
        )
