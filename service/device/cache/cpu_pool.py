"""Host memory for cache blocks that the device had no room for.

A slot holds one block of all layers in the cache's own format, so that a copy converts
nothing and loads back bit for bit. Which block lies in which slot is the scheduler's
business. On CUDA the memory is pinned and copies are queued on the stream that computes:
they are in order with the steps, and nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import torch

from service.device.cache.kv_cache import Pages
from service.engine.plan import BlockCopy, CopyKind


class CpuKvPool:
    """`slots` copies of blocks of one cache; allocated once."""

    def __init__(self, cache: Pages, slots: int) -> None:
        assert slots > 0, slots
        self.slots = slots
        self._cache = cache
        self._memory = tuple(_host_copy(whole, slots) for whole in cache.storage)

    def run(self, copies: Iterable[BlockCopy]) -> None:
        """All copies in their order."""
        for copy in copies:
            match copy.kind:
                case CopyKind.SAVE:
                    self.save(copy.block, copy.host_slot)
                case CopyKind.LOAD:
                    self.load(copy.host_slot, copy.block)
                case _:
                    assert_never(copy.kind)

    def save(self, block: int, slot: int) -> None:
        """Device block to host slot."""
        self._check(block, slot)
        for whole, memory in zip(self._cache.storage, self._memory, strict=True):
            memory[slot].copy_(whole[:, :, block], non_blocking=True)

    def load(self, slot: int, block: int) -> None:
        """Host slot to device block."""
        self._check(block, slot)
        for whole, memory in zip(self._cache.storage, self._memory, strict=True):
            whole[:, :, block].copy_(memory[slot], non_blocking=True)

    def _check(self, block: int, slot: int) -> None:
        assert 0 <= block < self._cache.pages, (block, self._cache.pages)
        assert 0 <= slot < self.slots, (slot, self.slots)


def _host_copy(whole: torch.Tensor, slots: int) -> torch.Tensor:
    """Memory [slots, layers, 2, ...] for blocks of [layers, sides, pages, ...]."""
    shape = (slots, *whole.shape[:2], *whole.shape[3:])
    return torch.empty(shape, dtype=whole.dtype, pin_memory=whole.device.type == "cuda")
