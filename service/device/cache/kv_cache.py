"""The paged key/value cache: memory only; the block pool decides who may write where.

Pages are NHD, [page_tokens, kv_heads, head_dim], the layout that flash-attn and our Triton
kernels take. A cache owns its format: others write rows of the compute dtype and gather
pages of the compute dtype, and only `storage` (for copies of whole blocks) and `page_bytes`
show how they are stored.

Int8 and fp8 keep one float32 scale a token and KV head, because a key's size differs far more
between heads and tokens than within one: 68 bytes a head of 64 instead of 256 in float32
or 128 in bf16. Price: every gather multiplies. The error of fp8 (e4m3) follows each
value's own size, int8's the largest of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch

from service.device.cache.zero_pages import zeros
from service.device.quantization.rows import FP8, SCALE, dequantize_rows, quantize_rows
from service.device.spec import ModelSpec


class KvFormat(StrEnum):
    """How keys and values are stored."""

    PLAIN = "plain"
    INT8 = "int8"
    FP8 = "fp8"


QUANTIZED_DTYPES = {KvFormat.INT8: torch.int8, KvFormat.FP8: FP8}


@dataclass(frozen=True, slots=True)
class KvTensor:
    """Keys or values of a layer as they are stored: [pages, page_tokens, kv_heads, head_dim], with
    float32 scales [pages, page_tokens, kv_heads, 1] where they are quantized."""

    data: torch.Tensor
    scales: torch.Tensor | None = None


class Pages(Protocol):
    """Keys and values of every layer in pages; allocated once, never grows.

    `storage` are the tensors that hold it all, each [layers, 2, pages, ...]: a block is
    index `block` of the third dimension of each. What lies inside a page is between the
    cache and the decoder that reads it.
    """

    @property
    def pages(self) -> int: ...

    @property
    def page_tokens(self) -> int: ...

    @property
    def format(self) -> KvFormat: ...

    @property
    def storage(self) -> tuple[torch.Tensor, ...]: ...


class KvCache(Pages, Protocol):
    """Pages that are written and gathered as tensors."""

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Write [tokens, kv_heads, head_dim]; token i goes to place `slot_mapping[i]` % page_tokens
        of page `slot_mapping[i]` // page_tokens (int64 [tokens])."""
        ...

    def kv_tensors(self, layer: int) -> tuple[KvTensor, KvTensor]:
        """Keys and values of a layer, not copied: for kernels that read pages."""
        ...

    def gather(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `pages` int64 [...] as [..., page_tokens, kv_heads, head_dim],
        copies in the compute dtype."""
        ...


class PlainKvCache:
    """Keys and values as they were computed."""

    format = KvFormat.PLAIN

    def __init__(
        self,
        spec: ModelSpec,
        pages: int,
        page_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (spec.layers, 2, pages, page_tokens, spec.kv_heads, spec.head_dim)
        whole = zeros(shape, dtype, device)
        self.pages = pages
        self.page_tokens = page_tokens
        self.storage = (whole,)
        self.keys = [layer[0] for layer in whole]
        self.values = [layer[1] for layer in whole]

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        self.keys[layer].view(-1, *keys.shape[1:]).index_copy_(0, slot_mapping, keys)
        self.values[layer].view(-1, *values.shape[1:]).index_copy_(0, slot_mapping, values)

    def kv_tensors(self, layer: int) -> tuple[KvTensor, KvTensor]:
        return KvTensor(self.keys[layer]), KvTensor(self.values[layer])

    def gather(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _select(self.keys[layer], pages), _select(self.values[layer], pages)


class QuantizedKvCache:
    """Eight bits a value with one scale a token and KV head, rounded when written. `storage` and
    what is copied are bytes: torch moves those on any device."""

    def __init__(
        self,
        kind: KvFormat,
        spec: ModelSpec,
        pages: int,
        page_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (spec.layers, 2, pages, page_tokens, spec.kv_heads)
        quantized = zeros((*shape, spec.head_dim), torch.int8, device)
        scales = zeros((*shape, 1), SCALE, device)
        self.format = kind
        self.pages = pages
        self.page_tokens = page_tokens
        self.storage = (quantized, scales)
        self._quantized = [(layer[0], layer[1]) for layer in quantized]
        self._scales = [(layer[0], layer[1]) for layer in scales]
        self._quantized_dtype = QUANTIZED_DTYPES[kind]
        self._dtype = dtype

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        for index, rows in enumerate((keys, values)):
            quantized, scales = quantize_rows(rows, self._quantized_dtype)
            stored = self._quantized[layer][index].view(-1, *quantized.shape[1:])
            stored.index_copy_(0, slot_mapping, quantized.view(torch.int8))
            stored_scales = self._scales[layer][index].view(-1, *scales.shape[1:])
            stored_scales.index_copy_(0, slot_mapping, scales)

    def kv_tensors(self, layer: int) -> tuple[KvTensor, KvTensor]:
        keys, values = (
            KvTensor(quantized.view(self._quantized_dtype), scales)
            for quantized, scales in zip(self._quantized[layer], self._scales[layer], strict=True)
        )
        return keys, values

    def gather(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._gather(layer, 0, pages), self._gather(layer, 1, pages)

    def _gather(self, layer: int, index: int, pages: torch.Tensor) -> torch.Tensor:
        """Keys (index 0) or values (1)."""
        quantized = _select(self._quantized[layer][index], pages).view(self._quantized_dtype)
        return dequantize_rows(quantized, _select(self._scales[layer][index], pages), self._dtype)


def make_cache(
    kind: KvFormat,
    spec: ModelSpec,
    pages: int,
    page_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KvCache:
    """A cache of zeros; `dtype` is what is computed with."""
    match kind:
        case KvFormat.PLAIN:
            return PlainKvCache(spec, pages, page_tokens, dtype, device)
        case KvFormat.INT8 | KvFormat.FP8:
            return QuantizedKvCache(kind, spec, pages, page_tokens, dtype, device)


def page_bytes(
    spec: ModelSpec, page_tokens: int, dtype: torch.dtype, kind: KvFormat = KvFormat.PLAIN
) -> int:
    """Bytes of one page over all layers, keys and values, scales included."""
    match kind:
        case KvFormat.PLAIN:
            head_bytes = spec.head_dim * dtype.itemsize
        case KvFormat.INT8 | KvFormat.FP8:
            head_bytes = spec.head_dim * QUANTIZED_DTYPES[kind].itemsize + SCALE.itemsize
    return 2 * spec.layers * page_tokens * spec.kv_heads * head_bytes


def _select(pages: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Faster than advanced indexing on a CPU, and the same."""
    return pages.index_select(0, wanted.reshape(-1)).view(*wanted.shape, *pages.shape[1:])
