"""The paged key/value cache: memory only; who may write where is the block pool's business.

One tensor of keys and one of values a layer, NHD pages: [pages, page_tokens, kv_heads,
head_dim], the layout that flash-attn and our Triton kernels take.
"""

from __future__ import annotations

import torch

from service.device.spec import ModelSpec


class KvCache:
    """Allocated once; never grows."""

    def __init__(
        self,
        spec: ModelSpec,
        pages: int,
        page_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (pages, page_tokens, spec.kv_heads, spec.head_dim)
        self.pages = pages
        self.page_tokens = page_tokens
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.layers)]

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, cells: torch.Tensor
    ) -> None:
        """Put [tokens, kv_heads, head_dim] at the flat cell indices `cells` [tokens] int64."""
        self.keys[layer].view(-1, *keys.shape[1:]).index_copy_(0, cells, keys)
        self.values[layer].view(-1, *values.shape[1:]).index_copy_(0, cells, values)


def page_bytes(spec: ModelSpec, page_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers, keys and values."""
    return 2 * spec.layers * page_tokens * spec.kv_size * dtype.itemsize
