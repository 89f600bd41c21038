"""Launches the product kernels over tensors."""

from __future__ import annotations

import torch

from service.device.kernels.product_kernels import code_tokens, multiply_codes
from service.device.kernels.sizes import power_of_2
from service.device.quantization.coded_matrix import CodedMatrix, DequantisedLinear
from service.device.quantization.codes import FP8, LARGEST

FEW_TOKENS = 64
_LEAST_ROWS, _BLOCK_OUTPUTS, _BLOCK_WIDTH = 16, 32, 128


class CodedLinear:
    """Codes in memory: multiplied as they are for few tokens, dequantised before for many."""

    def __init__(self, matrix: CodedMatrix, bias: torch.Tensor | None) -> None:
        self._matrix, self._bias = matrix, bias
        self._many = DequantisedLinear(matrix, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not 0 < len(x) <= FEW_TOKENS:
            return self._many(x)
        return coded_product(x, self._matrix, self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._matrix.rows(ids)


def coded_product(
    x: torch.Tensor, matrix: CodedMatrix, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """[tokens, out] of x [tokens, in], in the dtype of x."""
    tokens, width = x.shape
    outputs = len(matrix.codes)
    out = x.new_empty((tokens, outputs))
    rows = min(FEW_TOKENS, max(_LEAST_ROWS, power_of_2(tokens)))
    multiply_codes[(-(-tokens // rows), -(-outputs // _BLOCK_OUTPUTS))](
        x.contiguous(), matrix.codes, matrix.scales, bias, out, tokens, outputs, width,
        BIASED=bias is not None, BLOCK_M=rows, BLOCK_N=_BLOCK_OUTPUTS, BLOCK_K=_BLOCK_WIDTH,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32",
    )  # fmt: skip
    return out


def coded_tokens(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes float8_e4m3fn [tokens, n] and scales float32 [tokens, 1] of [tokens, n]."""
    tokens, width = x.shape
    codes = torch.empty((tokens, width), dtype=FP8, device=x.device)
    scales = torch.empty((tokens, 1), dtype=torch.float32, device=x.device)
    if tokens:
        code_tokens[(tokens,)](
            x.contiguous(), codes, scales, width,
            MOST=LARGEST[FP8], BLOCK=power_of_2(width),
        )  # fmt: skip
    return codes, scales
