"""Low-rank products of rows that have LoRA adapters, each tile of rows with its own adapter.

Grouped products as in Punica (Chen et al. 2023) and S-LoRA (Sheng et al. 2023): adapters lie
wherever they were placed, a table has their addresses and ranks, so adapters of different ranks
are multiplied in one launch and nothing is padded to a common rank. Place 0 of the table is no
adapter, with rank 0: its tiles read nothing and end, which is what a captured graph needs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def low_rank_down_kernel(
    x, middle, addresses, ranks, tile_places, tile_firsts, tile_counts, width, middle_stride,
    PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`middle` float32 [tokens, middle_stride]: A times `x` [tokens, width], by its scales.

    Row `place` of `addresses` int64 [places, 3] has where A [PARTS * rank, width], B and float32
    scales [PARTS * rank] lie, `ranks` int32 [places] their rank. A tile has `tile_counts` rows from
    `tile_firsts` on. Grid (tiles, blocks of BLOCK_R of PARTS * the largest rank)."""
    tile = tl.program_id(0)
    place = tl.load(tile_places + tile).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    total_rank = tl.load(ranks + place) * PARTS
    if tl.program_id(1) * BLOCK_R < total_rank:
        lanes = tl.arange(0, BLOCK_M)
        here = lanes < tl.load(tile_counts + tile)
        rows = tl.load(tile_firsts + tile).to(tl.int64) + lanes
        there = columns < total_rank
        down = tl.load(addresses + place * 3).to(tl.pointer_type(x.dtype.element_ty))
        scales = tl.load(addresses + place * 3 + 2).to(tl.pointer_type(tl.float32))
        total = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        for start in range(0, width, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            inside = inner < width
            one = tl.load(
                x + rows[:, None] * width + inner[None, :],
                mask=here[:, None] & inside[None, :], other=0.0,
            )  # fmt: skip
            other = tl.load(
                down + columns.to(tl.int64)[:, None] * width + inner[None, :],
                mask=there[:, None] & inside[None, :], other=0.0,
            )  # fmt: skip
            total += tl.dot(one, tl.trans(other), input_precision=PRECISION)
        found = total * tl.load(scales + columns, mask=there, other=0.0)[None, :]
        at = rows[:, None] * middle_stride + columns[None, :]
        tl.store(middle + at, found, mask=here[:, None] & there[None, :])


@triton.jit
def low_rank_up_kernel(
    middle, out, addresses, ranks, tile_places, tile_firsts, tile_counts, outputs, middle_stride,
    first_end, second_end,
    PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds B times `middle` to `out` [tokens, outputs]. Outputs of part p, which ends at
    `first_end`, `second_end` or `outputs`, get the p-th rank columns of `middle`.
    Grid (tiles, blocks of BLOCK_N outputs)."""
    tile = tl.program_id(0)
    place = tl.load(tile_places + tile).to(tl.int64)
    rank = tl.load(ranks + place)
    if rank > 0:
        lanes = tl.arange(0, BLOCK_M)
        here = lanes < tl.load(tile_counts + tile)
        rows = tl.load(tile_firsts + tile).to(tl.int64) + lanes
        first = tl.program_id(1) * BLOCK_N
        columns = first + tl.arange(0, BLOCK_N)
        up = tl.load(addresses + place * 3 + 1).to(tl.pointer_type(out.dtype.element_ty))
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for part in tl.static_range(PARTS):
            begin = 0 if part == 0 else (first_end if part == 1 else second_end)
            end = outputs if part == PARTS - 1 else (first_end if part == 0 else second_end)
            if (first < end) & (first + BLOCK_N > begin):
                there = (columns >= begin) & (columns < end)
                for start in range(0, rank, BLOCK_R):
                    inner = start + tl.arange(0, BLOCK_R)
                    inside = inner < rank
                    one = tl.load(
                        middle + rows[:, None] * middle_stride + part * rank + inner[None, :],
                        mask=here[:, None] & inside[None, :], other=0.0,
                    )  # fmt: skip
                    other = tl.load(
                        up + columns.to(tl.int64)[:, None] * rank + inner[None, :],
                        mask=there[:, None] & inside[None, :], other=0.0,
                    )  # fmt: skip
                    total += tl.dot(one.to(other.dtype), tl.trans(other), input_precision=PRECISION)
        at = rows[:, None] * outputs + columns[None, :]
        within = here[:, None] & (columns < outputs)[None, :]
        before = tl.load(out + at, mask=within, other=0.0).to(tl.float32)
        tl.store(out + at, (before + total).to(out.dtype.element_ty), mask=within)
