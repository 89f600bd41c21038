"""The block pool against a model that is nothing but dictionaries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from service.engine.kv.blocks import BlockPool, OutOfBlocks, blocks_for

TOTAL = 12


class PoolAgainstModel(RuleBasedStateMachine):
    """Tables come and go, share blocks, leave contents behind, and blocks are in quarantine; the
    pool must agree with a reference count and with a dictionary of what is cached, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = BlockPool(TOTAL, self.evicted.append)
        self.tables: list[list[int]] = []
        self.kept: set[int] = set()
        self.cached: dict[int, None] = {}
        self.apart: dict[int, list[int]] = {}
        self.epochs = 0

    def references(self) -> dict[int, int]:
        counted: dict[int, int] = {}
        for table in self.tables:
            for block in table:
                counted[block] = counted.get(block, 0) + 1
        return counted

    @rule(count=st.integers(0, TOTAL + 2))
    def allocate(self, count: int) -> None:
        table = self.take(count, self.pool.allocate)
        if table is not None:
            self.tables.append(table)

    @rule(count=st.integers(0, TOTAL + 2))
    def quarantine(self, count: int) -> None:
        self.epochs += 1
        epoch = self.epochs
        blocks = self.take(count, lambda wanted: self.pool.quarantine(wanted, epoch))
        if blocks is not None:
            self.apart[epoch] = blocks

    @precondition(lambda self: self.apart)
    @rule(data=st.data(), taken=st.booleans())
    def end_quarantine(self, data: st.DataObject, taken: bool) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.apart)))
        blocks = self.apart.pop(epoch)
        if taken:
            self.pool.adopt(blocks, epoch)
            self.tables.append(blocks)
        else:
            self.pool.end_quarantine(blocks, epoch)

    def take(self, count: int, give: Callable[[int], list[int]]) -> list[int] | None:
        """Blocks that nobody has; None if there are too few."""
        in_use = set(self.references()).union(*self.apart.values())
        if count > TOTAL - len(in_use):
            with pytest.raises(OutOfBlocks):
                give(count)
            return None
        free = TOTAL - len(in_use) - len(self.cached)
        oldest = list(self.cached)[: max(0, count - free)]
        table = give(count)
        assert len(set(table)) == count
        assert not set(table) & in_use
        assert self.evicted == oldest, "the least recently used go first, and only if needed"
        for block in oldest:
            del self.cached[block]
            self.kept.discard(block)
        self.evicted.clear()
        return table

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        prefix = table[: data.draw(st.integers(0, len(table)))]
        self.pool.retain(prefix)
        self.tables.append(list(prefix))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        left = self.references()
        self.pool.release(table)
        for block in reversed(table):
            if block not in left and block in self.kept:
                self.cached[block] = None

    @precondition(lambda self: self.references())
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.references())))
        self.pool.keep(block)
        self.kept.add(block)

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.cached)))
        self.pool.retain([block])
        del self.cached[block]
        self.tables.append([block])

    @rule()
    def forget(self) -> None:
        assert self.pool.forget_cached() == len(self.cached)
        self.cached.clear()
        self.kept.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.used == len(self.references())
        assert self.pool.cached == len(self.cached)
        assert self.pool.quarantined == sum(map(len, self.apart.values()))
        assert self.pool.available == TOTAL - self.pool.used - self.pool.quarantined
        for epoch, blocks in self.apart.items():
            assert {self.pool.epoch_of(block) for block in blocks} <= {epoch}
        self.pool.check(self.tables)


PoolAgainstModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestPoolAgainstModel = PoolAgainstModel.TestCase


def test_releasing_a_free_block_is_caught() -> None:
    """A double free is an accounting bug and stops the engine with the numbers."""
    pool = BlockPool(4)
    table = pool.allocate(2)
    pool.release(table)

    with pytest.raises(AssertionError, match="0 references"):
        pool.release(table)


def test_check_notices_a_block_that_no_request_uses() -> None:
    """A leak shows as soon as the pool is walked against the live tables."""
    pool = BlockPool(4)
    pool.allocate(1)

    with pytest.raises(AssertionError, match="live requests hold 0"):
        pool.check([])


def test_blocks_are_counted_in_whole_blocks() -> None:
    """One token more than a full block takes another block."""
    assert [blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
