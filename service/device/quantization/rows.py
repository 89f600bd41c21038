"""Quantization to 8 bits: int8, or fp8 (e4m3), with one scale a row.

Keys and values, weights, and activations are all rounded here.
"""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
SCALE = torch.float32
# the largest value of each format
LARGEST_VALUE = {torch.int8: 127.0, FP8: 448.0}


def quantize_rows(
    rows: torch.Tensor, kind: torch.dtype = torch.int8
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of `kind` [..., n] and scales float32 [..., 1] of [..., n]; zeros stay zeros.

    What comes back of int8 differs by at most half a scale, which is 1/254 of the row's largest;
    of fp8 by at most 1/16 of the value, or half of the smallest code where that is more.
    """
    rows = rows.float()
    largest = torch.linalg.vector_norm(rows, torch.inf, dim=-1, keepdim=True)
    scales = largest.div_(LARGEST_VALUE[kind]).clamp_min_(torch.finfo(SCALE).tiny)
    scaled = rows / scales
    return (scaled.round_() if kind is torch.int8 else scaled).to(kind), scales


def dequantize_rows(
    quantized: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """[..., n] in `dtype` from what `quantize_rows` gave."""
    return quantized.to(SCALE).mul_(scales).to(dtype)
