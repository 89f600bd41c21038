"""Blocks of a cache as bytes, to be sent to another engine and written into its cache.

The bytes of a block are those of its part of each tensor of the cache's `storage`, one after the
other: all layers, keys and values, and with int8 or fp8 the scales too. Nothing is converted, so
both caches must be of the same kind (same format, same back end, same model): see
`service.fleet.transfer.messages.Layout`. Positions of a block that hold no token are sent as they
are.
"""

from __future__ import annotations

import torch

from service.device.cache.kv_cache import Pages


class CacheBlocks:
    """Implements `service.fleet.transfer.transport.BlockMemory` over any cache. A read or a write
    of a block that nobody computes needs no lock; on CUDA each waits for its own copy."""

    def __init__(self, cache: Pages) -> None:
        self._storage = cache.storage
        self.blocks = cache.pages
        self._sizes = [_block_bytes(whole) for whole in cache.storage]
        self.block_bytes = sum(self._sizes)

    @property
    def layout(self) -> str:
        """In words what the bytes of a block are; two caches of the same words and the same model
        have blocks that mean the same."""
        return "; ".join(
            f"{str(whole.dtype).removeprefix('torch.')} {list(whole.shape[:2] + whole.shape[3:])}"
            for whole in self._storage
        )

    def read(self, block: int) -> bytes:
        """The block's bytes, copied. Raises IndexError."""
        self._check(block)
        parts = [
            whole[:, :, block].contiguous().cpu().reshape(-1).view(torch.uint8)
            for whole in self._storage
        ]
        return b"".join(part.numpy().tobytes() for part in parts)

    def write(self, block: int, data: bytes | memoryview) -> None:
        """Replace the block. Raises IndexError, and ValueError for another number of bytes."""
        self._check(block)
        if len(data) != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, not {len(data)}")
        begin, view = 0, bytearray(data)
        for whole, size in zip(self._storage, self._sizes, strict=True):
            part = torch.frombuffer(view, dtype=torch.uint8, count=size, offset=begin)
            target = whole[:, :, block]
            target.copy_(part.clone().view(whole.dtype).view(target.shape))
            begin += size

    def _check(self, block: int) -> None:
        if not 0 <= block < self.blocks:
            raise IndexError(f"block {block} of {self.blocks}")


def _block_bytes(whole: torch.Tensor) -> int:
    return whole[:, :, 0].numel() * whole.dtype.itemsize
