"""Launches the kernels of kept weights over tensors."""

from __future__ import annotations

import torch

from service.device.kernels.kept_kernels import fp8_product_kernel, int4_product_kernel
from service.device.kernels.sizes import power_of_2
from service.device.quantization.kept_linear import TiledLinear
from service.device.quantization.kept_matrix import Fp8Matrix, Int4Matrix
from service.device.quantization.triton_products import FEW_TOKENS

_LEAST_ROWS, _BLOCK_OUTPUTS, _BLOCK_WIDTH = 16, 32, 64


class KernelLinear:
    """Multiplied as it is for few tokens, dequantised in tiles for many."""

    def __init__(
        self, matrix: Int4Matrix | Fp8Matrix, bias: torch.Tensor | None, compute: torch.dtype
    ) -> None:
        self._matrix, self._bias = matrix, bias
        self._many = TiledLinear(matrix, bias, compute)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not 0 < len(x) <= FEW_TOKENS:
            return self._many(x)
        if isinstance(self._matrix, Int4Matrix):
            return int4_product(x, self._matrix, self._bias)
        return fp8_product(x, self._matrix, self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._many.rows(ids)


def int4_product(
    x: torch.Tensor, matrix: Int4Matrix, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """[tokens, out] of x [tokens, in], in the dtype of x."""
    if matrix.order is not None:
        x = x[:, matrix.order.long()]
    out, grid, options = _launch(x, matrix.shape[0], bias)
    int4_product_kernel[grid](
        x.contiguous(), matrix.codes, matrix.scales, matrix.zeros, bias, out, *x.shape[:1],
        *matrix.shape, matrix.group, **options,
    )  # fmt: skip
    return out


def fp8_product(
    x: torch.Tensor, matrix: Fp8Matrix, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """[tokens, out] of x [tokens, in], in the dtype of x."""
    out, grid, options = _launch(x, matrix.shape[0], bias)
    fp8_product_kernel[grid](
        x.contiguous(), matrix.codes, matrix.scales, bias, out, *x.shape[:1], *matrix.shape,
        matrix.group, **options,
    )  # fmt: skip
    return out


def _launch(
    x: torch.Tensor, outputs: int, bias: torch.Tensor | None
) -> tuple[torch.Tensor, tuple[int, int], dict[str, int | str]]:
    """Room for the result, the grid, and what the kernels are compiled for."""
    tokens = len(x)
    rows = min(FEW_TOKENS, max(_LEAST_ROWS, power_of_2(tokens)))
    options: dict[str, int | str] = {
        "BIASED": bias is not None,
        "BLOCK_M": rows,
        "BLOCK_N": _BLOCK_OUTPUTS,
        "BLOCK_K": _BLOCK_WIDTH,
        "PRECISION": "ieee" if x.dtype is torch.float32 else "tf32",
    }
    return (
        x.new_empty((tokens, outputs)),
        (-(-tokens // rows), -(-outputs // _BLOCK_OUTPUTS)),
        options,
    )
