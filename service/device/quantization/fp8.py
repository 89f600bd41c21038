"""Fp8 (e4m3) weights with one scale an output, times activations rounded to fp8 with one scale a
token: the product that GPUs from Ada on have instructions for.

Where there is none the same rounded numbers are multiplied as floats, so that what the format costs
in quality can be measured on any machine. The way of scaling is that of torch's `_scaled_mm`,
rowwise (see also Micikevicius et al., FP8 Formats for Deep Learning, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from service.device.quantization.linear import Linear
from service.device.quantization.quantized_matrix import QuantizedMatrix
from service.device.quantization.rows import FP8, quantize_rows

_ALIGNED = 16  # both sides of a matrix that the kernel takes
_LEAST_CAPABILITY = (8, 9)


def fp8_fault(device: torch.device) -> str | None:
    """Why there is no fp8 product there; None when there is."""
    if device.type != "cuda":
        return f"no fp8 product for {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} has no fp8 product"
    return None


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """Implements `MatrixFormat`. `fallback_reason` None means that the GPU multiplies fp8."""

    compute: torch.dtype
    fallback_reason: str | None

    @property
    def label(self) -> str:
        if self.fallback_reason is None:
            return "fp8 weights and activations"
        return f"fp8 weights and activations, multiplied as floats ({self.fallback_reason})"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        aligned = all(size % _ALIGNED == 0 for size in weight.shape)
        return Fp8Linear(self.table(weight), bias, self.fallback_reason is None and aligned)

    def table(self, weight: torch.Tensor) -> QuantizedMatrix:
        return QuantizedMatrix.of(weight, FP8, self.compute)


class Fp8Linear:
    """One weight; `scaled` is whether the device multiplies fp8."""

    def __init__(self, matrix: QuantizedMatrix, bias: torch.Tensor | None, scaled: bool) -> None:
        self._matrix = matrix
        self._bias = bias
        self._scaled = scaled

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not len(x):
            return x.new_empty((0, len(self._matrix.quantized)))
        quantized, scales = tokens_to_fp8(x)
        out = self._product(quantized, scales).to(x.dtype)
        return out if self._bias is None else out.add_(self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._matrix.rows(ids)

    def _product(self, quantized: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        weight = self._matrix
        if not self._scaled:
            return (quantized.float() @ weight.quantized.float().t()) * scales * weight.scales.t()
        return torch._scaled_mm(
            quantized,
            weight.quantized.t(),
            scale_a=scales,
            scale_b=weight.scales.t(),
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )


def tokens_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values float8_e4m3fn [tokens, n] and scales float32 [tokens, 1] of [tokens, n]; on a GPU by
    one kernel."""
    if x.is_cuda:
        from service.device.quantization.triton_products import quantize_tokens

        return quantize_tokens(x)
    return quantize_rows(x, FP8)
