"""Numbers in 8 bits: int8, or fp8 (e4m3), with a scale for each row of them.

One rounding for all that is held so: keys and values, weights, and activations.
"""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
SCALE = torch.float32
# the largest that a code can be
LARGEST = {torch.int8: 127.0, FP8: 448.0}


def quantise_rows(
    rows: torch.Tensor, kind: torch.dtype = torch.int8
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of `kind` [..., n] and scales float32 [..., 1] of [..., n]; a row of zeros stays zeros.

    What comes back of int8 differs by at most half a scale, which is 1/254 of the row's largest;
    of fp8 by at most 1/16 of the value, or half of the smallest code where that is more.
    """
    rows = rows.float()
    largest = torch.linalg.vector_norm(rows, torch.inf, dim=-1, keepdim=True)
    scales = largest.div_(LARGEST[kind]).clamp_min_(torch.finfo(SCALE).tiny)
    scaled = rows / scales
    return (scaled.round_() if kind is torch.int8 else scaled).to(kind), scales


def dequantise_rows(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[..., n] in `dtype` from what `quantise_rows` gave."""
    return codes.to(SCALE).mul_(scales).to(dtype)
