"""A weight in 8 bits, and the product that is right wherever there is no kernel for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from service.device.quantization.rows import quantize_rows


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """`quantized` int8 or float8_e4m3fn [out, in] times `scales` float32 [out, 1]; `dtype` is what
    comes out."""

    quantized: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, weight: torch.Tensor, kind: torch.dtype, dtype: torch.dtype) -> QuantizedMatrix:
        """A weight [out, in] quantized to `kind`."""
        return cls(*quantize_rows(weight, kind), dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        quantized = self.quantized.view(torch.int8)[ids].view(self.quantized.dtype)
        return quantized.float().mul_(self.scales[ids]).to(self.dtype)

    def dequantized(self) -> torch.Tensor:
        """The whole matrix [out, in]."""
        if self.dtype is torch.float32:
            return self.quantized.float().mul_(self.scales)
        return self.quantized.to(self.dtype) * self.scales.to(self.dtype)


class DequantizedLinear:
    """8 bits in memory, a float product: right everywhere, slow for few tokens."""

    def __init__(self, matrix: QuantizedMatrix, bias: torch.Tensor | None) -> None:
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._matrix.dequantized(), self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._matrix.rows(ids)
