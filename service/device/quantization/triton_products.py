"""Launches the product kernels over tensors."""

from __future__ import annotations

import torch

from service.device.kernels.product_kernels import quantize_tokens_kernel, quantized_product_kernel
from service.device.kernels.sizes import power_of_2
from service.device.quantization.quantized_matrix import DequantizedLinear, QuantizedMatrix
from service.device.quantization.rows import FP8, LARGEST_VALUE

FEW_TOKENS = 64
_LEAST_ROWS, _BLOCK_OUTPUTS, _BLOCK_WIDTH = 16, 32, 128


class QuantizedLinear:
    """8 bits in memory: multiplied as they are for few tokens, dequantised before for many."""

    def __init__(self, matrix: QuantizedMatrix, bias: torch.Tensor | None) -> None:
        self._matrix, self._bias = matrix, bias
        self._many = DequantizedLinear(matrix, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not len(x):  # a chunk in the midst of a prompt wants no logits
            return x.new_empty((0, len(self._matrix.quantized)))
        if len(x) > FEW_TOKENS:
            return self._many(x)
        return quantized_product(x, self._matrix, self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._matrix.rows(ids)


def quantized_product(
    x: torch.Tensor, matrix: QuantizedMatrix, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """[tokens, out] of x [tokens, in], in the dtype of x."""
    tokens, width = x.shape
    outputs = len(matrix.quantized)
    out = x.new_empty((tokens, outputs))
    rows = min(FEW_TOKENS, max(_LEAST_ROWS, power_of_2(tokens)))
    quantized_product_kernel[(-(-tokens // rows), -(-outputs // _BLOCK_OUTPUTS))](
        x.contiguous(), matrix.quantized, matrix.scales, bias, out, tokens, outputs, width,
        BIASED=bias is not None, BLOCK_M=rows, BLOCK_N=_BLOCK_OUTPUTS, BLOCK_K=_BLOCK_WIDTH,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32",
    )  # fmt: skip
    return out


def quantize_tokens(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values float8_e4m3fn [tokens, n] and scales float32 [tokens, 1] of [tokens, n]."""
    tokens, width = x.shape
    quantized = torch.empty((tokens, width), dtype=FP8, device=x.device)
    scales = torch.empty((tokens, 1), dtype=torch.float32, device=x.device)
    if tokens:
        quantize_tokens_kernel[(tokens,)](
            x.contiguous(), quantized, scales, width,
            MOST=LARGEST_VALUE[FP8], BLOCK=power_of_2(width),
        )  # fmt: skip
    return quantized, scales
