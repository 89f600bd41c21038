"""Rounding that gives the same numbers wherever a kernel runs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def on_fp8_grid(x):
    """The float32 that is nearest to `x` among what e4m3 can hold, ties to even; up to 448. Casting
    that is exact everywhere: Triton's interpreter loses carries when it rounds by itself."""
    bits = x.to(tl.int32, bitcast=True)
    bits += 0x7FFFF + ((bits >> 20) & 1)
    normal = (bits & -0x100000).to(tl.float32, bitcast=True)
    small = (x + 24576.0) - 24576.0  # there the next float is one smallest code of fp8 away
    return tl.where(tl.abs(x) < 0.015625, small, normal)
