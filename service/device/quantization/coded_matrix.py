"""A weight in 8 bits, and the product that is right wherever there is no kernel for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from service.device.quantization.codes import quantise_rows


@dataclass(frozen=True, slots=True)
class CodedMatrix:
    """`codes` int8 or float8_e4m3fn [out, in] times `scales` float32 [out, 1]; `dtype` is what
    comes out."""

    codes: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, weight: torch.Tensor, kind: torch.dtype, dtype: torch.dtype) -> CodedMatrix:
        """A weight [out, in] in codes of `kind`."""
        return cls(*quantise_rows(weight, kind), dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        codes = self.codes.view(torch.int8)[ids].view(self.codes.dtype)
        return codes.float().mul_(self.scales[ids]).to(self.dtype)

    def dequantised(self) -> torch.Tensor:
        """The whole matrix [out, in]."""
        if self.dtype is torch.float32:
            return self.codes.float().mul_(self.scales)
        return self.codes.to(self.dtype) * self.scales.to(self.dtype)


class DequantisedLinear:
    """8 bits in memory, a float product: right everywhere, slow for few tokens."""

    def __init__(self, matrix: CodedMatrix, bias: torch.Tensor | None) -> None:
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._matrix.dequantised(), self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._matrix.rows(ids)
