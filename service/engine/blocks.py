"""The pool of cache blocks: the only place that knows who may write where.

Blocks are numbered 0 .. total - 1. A block is free or it has one or more references;
sharing a prefix is a second reference. The pool never looks at contents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_tokens)


class OutOfBlocks(Exception):
    """More blocks were asked for than are free; the caller should have looked first."""


class BlockPool:
    """Reference-counted blocks; freed blocks are reused last-in first-out.

    Last-in first-out, because a block that was just in use is still warm in the caches
    of the machine.
    """

    def __init__(self, total: int) -> None:
        assert total > 0, total
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that live requests hold."""
        return self.total - len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds but whose contents are kept for reuse (none yet)."""
        return 0

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one reference. Raises OutOfBlocks."""
        assert count >= 0, count
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} of {self.total} free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            assert self._references[block] == 0, self._describe(block)
            self._references[block] = 1
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block, which must be in use."""
        for block in blocks:
            assert self._references[block] > 0, self._describe(block)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference from each block; blocks without references become free."""
        for block in reversed(blocks):
            assert self._references[block] > 0, self._describe(block)
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Walk the whole pool against the block tables of all live requests."""
        expected = Counter(block for table in held for block in table)
        for block, references in enumerate(self._references):
            assert references == expected[block], (
                f"{self._describe(block)}, but live requests hold {expected[block]}"
            )
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert all(self._references[block] == 0 for block in free), "a used block is free"
        assert len(free) + len(expected) == self.total, "a block is lost"

    def _describe(self, block: int) -> str:
        return (
            f"block {block} has {self._references[block]} references; "
            f"{self.used} used + {self.free} free of {self.total}"
        )
