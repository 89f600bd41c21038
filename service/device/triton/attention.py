"""Launches the attention kernels over tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from service.device.cache.kv_cache import KvTensor
from service.device.kernels.attention_kernels import attend, attend_part, merge_parts
from service.device.kernels.sizes import power_of_2
from service.device.spec import EVERYTHING, Reach

_LOG2_E = math.log2(math.e)
_LEAST_ROWS = 16  # of a product's operand
_TILE_ROWS = 64
_NO_WINDOW = 1 << 30


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of an attention: `heads` queries over `kv_heads` keys of `head_dim`."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def dims(self) -> int:
        """As many as a product's operand needs."""
        return max(_LEAST_ROWS, power_of_2(self.head_dim))

    @property
    def tile_tokens(self) -> int:
        """Queries in a tile of `attend`."""
        return max(1, _TILE_ROWS // self.group)

    def block_rows(self, tokens: int) -> int:
        """Rows of a tile with so many queries of each head."""
        return max(_LEAST_ROWS, power_of_2(tokens * self.group))


@dataclass(frozen=True, slots=True)
class Sequences:
    """Rows with any number of queries, all int32: `table` [rows, pages]; `begins`, `counts` and
    `contexts` [rows]; `tile_rows` and `tile_firsts` [tiles] (`tiles_of`)."""

    table: torch.Tensor
    begins: torch.Tensor
    counts: torch.Tensor
    contexts: torch.Tensor
    tile_rows: torch.Tensor
    tile_firsts: torch.Tensor


@dataclass(frozen=True, slots=True)
class Singles:
    """Rows with one query each, all int32: `table` [rows, pages]; `flat` and `lengths` [rows],
    where the query lies in the flat batch and how many keys it sees, its own included. A
    length of 0 is padding. `parts` is how many programs share a row."""

    table: torch.Tensor
    flat: torch.Tensor
    lengths: torch.Tensor
    parts: int


def tiles_of(counts: list[int], tile_tokens: int) -> tuple[list[int], list[int]]:
    """Row and first query of every tile."""
    pairs = [
        (row, first) for row, count in enumerate(counts) for first in range(0, count, tile_tokens)
    ]
    return [row for row, _ in pairs], [first for _, first in pairs]


def parts_for(rows: int, kv_heads: int, processors: int, most: int = 32) -> int:
    """Programs a row, a power of two: enough that every processor has two."""
    wanted = 2 * processors / max(1, rows * kv_heads)
    return max(1, min(most, power_of_2(math.ceil(wanted))))


def attend_sequences(
    query: torch.Tensor,
    out: torch.Tensor,
    keys: KvTensor,
    values: KvTensor,
    rows: Sequences,
    shape: Heads,
    reach: Reach = EVERYTHING,
    block_keys: int = 64,
) -> None:
    """query and out [tokens, heads, head_dim]; only the rows' queries are written."""
    tiles = len(rows.tile_rows)
    if not tiles:
        return
    attend[(tiles, shape.kv_heads)](
        query, out, keys.data, values.data, keys.scales, values.scales,
        rows.table, rows.tile_rows, rows.tile_firsts, rows.begins, rows.counts, rows.contexts,
        _scale(shape, reach), reach.window or _NO_WINDOW, rows.table.shape[1],
        HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD_DIM=shape.head_dim, DIMS=shape.dims,
        PAGE=keys.data.shape[1], TILE_TOKENS=shape.tile_tokens,
        BLOCK_M=shape.block_rows(shape.tile_tokens), BLOCK_N=block_keys,
        SCALED=keys.scales is not None, PRECISION=_precision(query),
    )  # fmt: skip


def attend_singles(
    query: torch.Tensor,
    out: torch.Tensor,
    keys: KvTensor,
    values: KvTensor,
    rows: Singles,
    shape: Heads,
    reach: Reach = EVERYTHING,
    block_keys: int = 64,
) -> None:
    """The same for one query a row."""
    count = len(rows.flat)
    if not count:
        return
    stats = (count, shape.heads, rows.parts)
    partial = query.new_empty((*stats, shape.dims), dtype=torch.float32)
    peaks, totals = (query.new_empty(stats, dtype=torch.float32) for _ in range(2))
    attend_part[(count, shape.kv_heads, rows.parts)](
        query, partial, peaks, totals, keys.data, values.data, keys.scales, values.scales,
        rows.table, rows.flat, rows.lengths, _scale(shape, reach), reach.window or _NO_WINDOW,
        rows.table.shape[1],
        HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD_DIM=shape.head_dim, DIMS=shape.dims,
        PAGE=keys.data.shape[1], PARTS=rows.parts, BLOCK_M=shape.block_rows(1),
        BLOCK_N=block_keys, SCALED=keys.scales is not None, PRECISION=_precision(query),
    )  # fmt: skip
    merge_parts[(count, shape.heads)](
        partial, peaks, totals, out, rows.flat,
        HEADS=shape.heads, HEAD_DIM=shape.head_dim, DIMS=shape.dims, PARTS=rows.parts,
        PARTS_PADDED=power_of_2(rows.parts),
    )  # fmt: skip


def _scale(shape: Heads, reach: Reach) -> float:
    return _LOG2_E * (shape.head_dim**-0.5 if reach.scale is None else reach.scale)


def _precision(query: torch.Tensor) -> str:
    """Float32 is for comparison with the reference, so it is multiplied as such."""
    return "ieee" if query.dtype is torch.float32 else "tf32"
