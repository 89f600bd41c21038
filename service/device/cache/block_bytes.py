"""Blocks of a cache as bytes, to be sent to another engine and written into its cache.

The bytes of a block are those of its part of each tensor of the cache's `storage`, one after the
other: all layers, keys and values, and with int8 or fp8 the scales too. Nothing is converted, so
both caches must be of the same kind (same format, same back end, same model): see
`service.fleet.transfer.messages.Layout`. Positions of a block that hold no token are sent as they
are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from service.device.cache.kv_cache import Pages


class CacheBlocks:
    """Implements `service.fleet.transfer.transport.BlockMemory` over any cache. A read or a write
    of a block that nobody computes needs no lock; on CUDA each waits for its own copy.

    In a CPU's memory numpy copies, in the thread that asks: torch would share a copy so small out
    to threads whose cores the decoder has.
    """

    def __init__(self, cache: Pages) -> None:
        self._storage = cache.storage
        self._bytes = [_as_bytes(whole) for whole in cache.storage]
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
            _from_device(whole[:, :, block]) if memory is None else memory[:, :, block].tobytes()
            for whole, memory in zip(self._storage, self._bytes, strict=True)
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, block: int, data: bytes | memoryview) -> None:
        """Replace the block. Raises IndexError, and ValueError for another number of bytes."""
        self._check(block)
        if len(data) != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, not {len(data)}")
        begin, view = 0, memoryview(data)
        for whole, memory, size in zip(self._storage, self._bytes, self._sizes, strict=True):
            part = np.frombuffer(view[begin : begin + size], dtype=np.uint8)
            if memory is None:
                _to_device(part, whole[:, :, block])
            else:
                memory[:, :, block] = part.reshape(memory[:, :, block].shape)
            begin += size

    def _check(self, block: int) -> None:
        if not 0 <= block < self.blocks:
            raise IndexError(f"block {block} of {self.blocks}")


def _block_bytes(whole: torch.Tensor) -> int:
    return whole[:, :, 0].numel() * whole.dtype.itemsize


def _as_bytes(whole: torch.Tensor) -> npt.NDArray[np.uint8] | None:
    """The same memory, its last dimension in bytes; None if it is not a CPU's."""
    if whole.device.type != "cpu":
        return None
    found: npt.NDArray[np.uint8] = whole.view(torch.uint8).numpy()
    return found


def _from_device(block: torch.Tensor) -> bytes:
    return block.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _to_device(part: npt.NDArray[np.uint8], block: torch.Tensor) -> None:
    copied = torch.from_numpy(part.copy())
    block.copy_(copied.view(block.dtype).view(block.shape))
