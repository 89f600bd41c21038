"""Launches the kernels of LoRA adapters over tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from service.device.kernels.lora_kernels import low_rank_down_kernel, low_rank_up_kernel

TILE_ROWS = 32
_LEAST_ROWS = 16  # of a product's operand
_BLOCK_RANKS, _BLOCK_INNER, _BLOCK_OUTPUTS, _BLOCK_WIDTH = 32, 16, 64, 64


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows that are multiplied together, all int32 [tiles] on the device: `places` of their
    adapters in the table, `firsts` of their rows, `counts` of rows, at most `most_rows`."""

    places: torch.Tensor
    firsts: torch.Tensor
    counts: torch.Tensor
    most_rows: int


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """One module of one layer in all places: `addresses` int64 [places, 3] of A, B and scales,
    `ranks` int32 [places]; `sizes` are the outputs of its parts."""

    addresses: torch.Tensor
    ranks: torch.Tensor
    sizes: tuple[int, ...]


def add_low_rank(
    x: torch.Tensor, out: torch.Tensor, table: ModuleTable, tiles: Tiles, most_rank: int
) -> None:
    """Adds to out [tokens, outputs] what the adapters of `tiles` make of x [tokens, width]. No
    adapter in the table has a larger rank than `most_rank`."""
    tokens, width = x.shape
    count, parts = len(tiles.places), len(table.sizes)
    if not count:
        return
    stride = parts * most_rank
    middle = x.new_empty((tokens, stride), dtype=torch.float32)
    rows = _LEAST_ROWS if tiles.most_rows <= _LEAST_ROWS else TILE_ROWS
    precision = "ieee" if x.dtype is torch.float32 else "tf32"
    low_rank_down_kernel[(count, -(-stride // _BLOCK_RANKS))](
        x.contiguous(), middle, table.addresses, table.ranks, tiles.places, tiles.firsts,
        tiles.counts, width, stride,
        PARTS=parts, BLOCK_M=rows, BLOCK_R=_BLOCK_RANKS, BLOCK_K=_BLOCK_WIDTH,
        PRECISION=precision,
    )  # fmt: skip
    outputs = out.shape[1]
    first_end = table.sizes[0]
    low_rank_up_kernel[(count, -(-outputs // _BLOCK_OUTPUTS))](
        middle, out, table.addresses, table.ranks, tiles.places, tiles.firsts, tiles.counts,
        outputs, stride, first_end, sum(table.sizes[:2]),
        PARTS=parts, BLOCK_M=rows, BLOCK_N=_BLOCK_OUTPUTS, BLOCK_R=_BLOCK_INNER,
        PRECISION=precision,
    )  # fmt: skip
