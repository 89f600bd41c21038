"""Keys and values in the pages that OpenVINO's paged attention reads and writes.

The memory is torch's, so that the host tier copies blocks of it as of any other cache; the
runtime is given views of it. A page is [kv_heads, tokens, head_dim]. With int8 the runtime
stores scales and zero points beside the int8 values, in a layout of its own: keys by channel
within a page, values by token. So keys and values have pages of different shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from service.device.cache.kv_cache import KvFormat
from service.device.cache.zero_pages import zeros
from service.device.openvino.graph import cache_inputs
from service.device.openvino.runtime import load_runtime


@dataclass(frozen=True, slots=True)
class PageLayout:
    """What the compiled model asks for: one page of one layer's keys and of its values."""

    layers: int
    page_tokens: int
    format: KvFormat
    dtype: torch.dtype
    key_page: tuple[int, ...]
    value_page: tuple[int, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values, scales included."""
        values = torch.Size(self.key_page).numel() + torch.Size(self.value_page).numel()
        return self.layers * values * self.dtype.itemsize


class OpenVinoKvCache:
    """Implements `Pages`; `tensors` are the runtime's views by input name."""

    def __init__(self, layout: PageLayout, pages: int) -> None:
        self.layout = layout
        self.pages = pages
        self.page_tokens = layout.page_tokens
        self.format = layout.format
        shapes = (layout.key_page, layout.value_page)
        self.storage = tuple(
            zeros((layout.layers, 1, pages, *shape), layout.dtype, torch.device("cpu"))
            for shape in shapes
        )
        self.tensors: dict[str, Any] = {}
        for layer in range(layout.layers):
            for name, whole in zip(cache_inputs(layer), self.storage, strict=True):
                self.tensors[name] = shared_tensor(whole[layer, 0])


def shared_tensor(memory: torch.Tensor) -> Any:
    """An `openvino.Tensor` over the same contiguous memory, which must outlive it."""
    ov = load_runtime()
    if memory.dtype is torch.bfloat16:  # numpy has no such type
        quantized = memory.view(torch.int16).numpy()
        return ov.Tensor(quantized, ov.Shape(list(memory.shape)), ov.Type.bf16)
    return ov.Tensor(memory.numpy(), shared_memory=True)
