"""The native decoder's paged cache: pages of 16 tokens in the layout that its kernels read.

Keys of a page and head lie as [head_dim][16 tokens], values as [head_dim / 16][16 tokens]
[16 dims] (see attention.h); within 16 numbers the order is the format's own. Only the
library reads them; CPU offload copies whole blocks.
"""

from __future__ import annotations

import torch

from service.device.cache.kv_cache import KvFormat
from service.device.cache.zero_pages import zeros
from service.device.native.library import Library, NumberKind
from service.device.spec import ModelSpec

PAGE_TOKENS = 16
_GROUP = 16
_CPU = torch.device("cpu")
_DTYPES = {
    NumberKind.FLOAT32: torch.float32,
    NumberKind.BFLOAT16: torch.bfloat16,
    NumberKind.INT8: torch.int8,
}


class NativeKvCache:
    """Memory of all pages; implements what the executor and CPU offload need of a cache."""

    page_tokens = PAGE_TOKENS

    def __init__(self, spec: ModelSpec, pages: int, kind: NumberKind) -> None:
        self.pages = pages
        self.format = KvFormat.INT8 if kind is NumberKind.INT8 else KvFormat.PLAIN
        heads = (spec.layers, 2, pages, spec.kv_heads)
        self._numbers = zeros((*heads, _page_numbers(spec)), _DTYPES[kind], _CPU)
        self.storage: tuple[torch.Tensor, ...] = (self._numbers,)
        if kind is NumberKind.INT8:
            self.storage += (zeros((*heads, PAGE_TOKENS), torch.float32, _CPU),)

    def attach(self, library: Library) -> None:
        """Give the library the addresses of the pages."""
        for layer, (keys, values) in enumerate(self._numbers):
            scales: tuple[int, int] | tuple[None, None] = (None, None)
            if len(self.storage) > 1:
                scales = tuple(scale.data_ptr() for scale in self.storage[1][layer])
            library.set_cache(layer, keys.data_ptr(), values.data_ptr(), *scales)


def native_page_bytes(spec: ModelSpec, kind: NumberKind) -> int:
    """Bytes of one page over all layers, keys and values, scales included."""
    head_bytes = _page_numbers(spec) * _DTYPES[kind].itemsize
    if kind is NumberKind.INT8:
        head_bytes += PAGE_TOKENS * torch.float32.itemsize
    return 2 * spec.layers * spec.kv_heads * head_bytes


def _page_numbers(spec: ModelSpec) -> int:
    """Numbers of a page and head, keys or values."""
    return -(-spec.head_dim // _GROUP) * _GROUP * PAGE_TOKENS
