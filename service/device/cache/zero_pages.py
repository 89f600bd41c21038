"""Large tensors of zeros that become memory only where they are written.

`torch.zeros` writes every page: a cache of 3 GiB costs a second or more at the start, and
the memory is gone whether or not anybody ever fills it. Fresh anonymous pages read as zeros
for nothing; each is made when it is first written, 4 KiB at a time, under the first tokens
that need it.
"""

from __future__ import annotations

import math
import mmap

import torch


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As `torch.zeros`; on other devices than the CPU it is just that."""
    count_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or count_bytes == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, count_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)  # keeps `pages` alive
