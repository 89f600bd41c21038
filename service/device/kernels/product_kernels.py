"""Products with weights in 8 bits, and activations into fp8.

A decode step reads every weight once and multiplies it with few tokens: what it reads is what it
takes. So weights are read in 8 bits and widened in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from service.device.kernels.rounding_kernels import on_fp8_grid


@triton.jit
def quantized_product_kernel(
    x, quantized, scales, bias, out, tokens, outputs, width,
    BIASED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`out` [tokens, outputs] = `x` [tokens, width] times `quantized` [outputs, width], each
    output by its float32 scale, plus `bias` [outputs] where BIASED. Grid (tiles of BLOCK_M tokens,
    tiles of BLOCK_N outputs)."""
    lanes = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    here, there = lanes < tokens, columns < outputs
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, width, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        inside = inner < width
        one = tl.load(
            x + lanes.to(tl.int64)[:, None] * width + inner[None, :],
            mask=here[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        other = tl.load(
            quantized + columns.to(tl.int64)[:, None] * width + inner[None, :],
            mask=there[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        total += tl.dot(one, tl.trans(other.to(one.dtype)), input_precision=PRECISION)
    found = total * tl.load(scales + columns, mask=there, other=0.0)[None, :]
    if BIASED:
        found += tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)[None, :]
    at = lanes.to(tl.int64)[:, None] * outputs + columns[None, :]
    tl.store(out + at, found.to(out.dtype.element_ty), mask=here[:, None] & there[None, :])


@triton.jit
def quantize_tokens_kernel(x, quantized, scales, width, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """`quantized` [tokens, width], at most MOST, with one float32 scale a token. Grid (tokens,)."""
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width
    values = tl.load(x + token * width + lanes, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), 0) / MOST, 1.1754943508222875e-38)
    tl.store(scales + token, scale)
    found = on_fp8_grid(values / scale).to(quantized.dtype.element_ty)
    tl.store(quantized + token * width + lanes, found, mask=inside)
