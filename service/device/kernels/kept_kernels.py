"""Products of few tokens with weights as a checkpoint holds them: nibbles in groups, fp8 in blocks.

Weights are read narrow and widened in registers, as in `product_kernels`; each tile is rounded to
the dtype of the activations, as a weight that was widened before would be.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def int4_product_kernel(
    x, codes, scales, zeros, bias, out, tokens, outputs, width, group,
    BIASED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` [tokens, outputs] = `x` [tokens, width] times weights in nibbles `codes` uint8
    [outputs, width / 2], less `zeros` uint8 and times `scales` [outputs, width / group], plus
    `bias` [outputs] where BIASED. BLOCK_K counts bytes. Grid (tiles of BLOCK_M tokens, tiles of
    BLOCK_N outputs)."""
    lanes = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    here, there = lanes < tokens, columns < outputs
    row, column = lanes.to(tl.int64)[:, None], columns.to(tl.int64)[:, None]
    half, groups = width // 2, width // group
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, half, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        inside = inner < half
        of_rows, of_weights = here[:, None] & inside[None, :], there[:, None] & inside[None, :]
        even = tl.load(x + row * width + 2 * inner[None, :], mask=of_rows, other=0.0)
        odd = tl.load(x + row * width + 2 * inner[None, :] + 1, mask=of_rows, other=0.0)
        both = tl.load(codes + column * half + inner[None, :], mask=of_weights, other=0)
        at = column * groups + (2 * inner // group)[None, :]
        scale = tl.load(scales + at, mask=of_weights, other=0.0).to(tl.float32)
        zero = tl.load(zeros + at, mask=of_weights, other=0).to(tl.float32)
        low = ((both & 15).to(tl.float32) - zero) * scale
        high = ((both >> 4).to(tl.float32) - zero) * scale
        total += tl.dot(even, tl.trans(low.to(even.dtype)), input_precision=PRECISION)
        total += tl.dot(odd, tl.trans(high.to(odd.dtype)), input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)[None, :]
    place = row * outputs + columns[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=here[:, None] & there[None, :])


@triton.jit
def fp8_product_kernel(
    x, codes, scales, bias, out, tokens, outputs, width, group,
    BIASED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The same of `codes` float8 [outputs, width] times float32 `scales` [outputs, groups], of
    every `group` inputs, the last perhaps fewer."""
    lanes = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    here, there = lanes < tokens, columns < outputs
    row, column = lanes.to(tl.int64)[:, None], columns.to(tl.int64)[:, None]
    groups = tl.cdiv(width, group)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, width, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        inside = inner < width
        of_weights = there[:, None] & inside[None, :]
        values = tl.load(
            x + row * width + inner[None, :], mask=here[:, None] & inside[None, :], other=0.0
        )
        code = tl.load(codes + column * width + inner[None, :], mask=of_weights, other=0.0)
        at = column * groups + (inner // group)[None, :]
        weight = code.to(tl.float32) * tl.load(scales + at, mask=of_weights, other=0.0)
        total += tl.dot(values, tl.trans(weight.to(values.dtype)), input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)[None, :]
    place = row * outputs + columns[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=here[:, None] & there[None, :])
