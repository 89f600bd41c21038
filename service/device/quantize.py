"""Int8 weights: one scale an output, symmetric, and the kernels that multiply them.

Torch's int8 product on x86 (FBGEMM) wants int8 activations too. Rounding them to 8 bits
ruins small models: SmolLM2-135M's perplexity rises by 5 % with one scale a row and by
92 % with torch's own one scale a tensor. So each activation is split into two digits,

    x = scale * (high + low / 126)      high, low integers in [-63, 63]

both digits of all rows go through one integer product, and the two halves of its result
are added: 14 bits, the quality of weight-only int8. Digits have 7 bits because without
VNNI the instruction adds pairs of products in 16 bits, and 127 * 127 * 2 is the most that
fits. Price: twice the rows, so that beyond `_DIGIT_ROWS` rows a float product with the
weight dequantised on the fly is faster; the codes are therefore kept beside the packed
weight, 2 bytes a weight in all. Results differ between the two ways by rounding (1e-4).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from service.device.linear import FLOATS, Linear, MatrixFormat

_CODE_MAX = 127.0
_DIGIT_MAX = 63.0
_LOW_STEPS = 2 * _DIGIT_MAX
_ZERO_POINT = 64
_DIGIT_ROWS = 128
_ENGINE = "fbgemm"


def choose_matrix_format(
    weights_format: str, compute: torch.dtype, device: torch.device
) -> MatrixFormat:
    """`auto` keeps floats; `int8` takes the fastest kernel that gives right results here."""
    if weights_format != "int8":
        return FLOATS
    fault = fbgemm_fault() if device.type == "cpu" else f"no int8 kernel for {device.type}"
    return Int8Format(compute, fault)


@dataclass(frozen=True, slots=True)
class Int8Format:
    """Implements `MatrixFormat`. `fallback_reason` None means that FBGEMM is used."""

    compute: torch.dtype
    fallback_reason: str | None

    @property
    def label(self) -> str:
        if self.fallback_reason is None:
            return (
                "int8 weights, torch FBGEMM (activations as two 7-bit digits; dequantised "
                f"above {_DIGIT_ROWS} tokens)"
            )
        return f"int8 weights, dequantised (fallback: {self.fallback_reason})"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        matrix = self.table(weight)
        if self.fallback_reason is None:
            return FbgemmLinear(matrix, bias)
        return DequantisedLinear(matrix, bias)

    def table(self, weight: torch.Tensor) -> Int8Matrix:
        codes, scales = quantise_outputs(weight)
        return Int8Matrix(codes, scales, self.compute)


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """`codes` int8 [out, in] times `scales` float32 [out, 1]; `dtype` is what comes out."""

    codes: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.codes[ids].float().mul_(self.scales[ids]).to(self.dtype)

    def dequantised(self) -> torch.Tensor:
        """The whole matrix [out, in]."""
        if self.dtype is torch.float32:
            return self.codes.float().mul_(self.scales)
        return self.codes.to(self.dtype) * self.scales.to(self.dtype)


class DequantisedLinear:
    """Int8 in memory, a float product: right everywhere, slow for few tokens."""

    def __init__(self, matrix: Int8Matrix, bias: torch.Tensor | None) -> None:
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._matrix.dequantised(), self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._matrix.rows(ids)


class FbgemmLinear:
    """Integer products for few tokens, a dequantised one for many."""

    def __init__(self, matrix: Int8Matrix, bias: torch.Tensor | None) -> None:
        self._many = DequantisedLinear(matrix, bias)
        self._packed = _pack(matrix)
        self._bias = bias
        self._product = _product()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        tokens = len(x)
        if tokens > _DIGIT_ROWS:
            return self._many(x)
        digits, scales = split_digits(x)
        both = self._product(digits, 1.0, _ZERO_POINT, self._packed)
        out = torch.add(both[:tokens], both[tokens:], alpha=1 / _LOW_STEPS).mul_(scales)
        if self._bias is not None:
            out += self._bias
        return out.to(x.dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._many.rows(ids)


def quantise_outputs(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes int8 [out, in] and scales float32 [out, 1]; half a scale is the largest error."""
    weight = weight.float()
    largest = weight.abs().amax(dim=1, keepdim=True)
    scales = (largest / _CODE_MAX).clamp_min(torch.finfo(torch.float32).tiny)
    return (weight / scales).round_().to(torch.int8), scales


def split_digits(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits float32 [2 * rows, in], high ones first, and scales float32 [rows, 1].

    The low digits are not rounded yet: the product does that. A row is split by its own
    largest value, so that it does not depend on the other rows.
    """
    x = x.float()
    largest = torch.linalg.vector_norm(x, torch.inf, dim=-1, keepdim=True)
    scales = largest.div_(_DIGIT_MAX).clamp_min_(torch.finfo(torch.float32).tiny)
    low = x / scales
    high = low.round()
    return torch.cat((high, low.sub_(high).mul_(_LOW_STEPS))), scales


def fbgemm_fault() -> str | None:
    """Why FBGEMM cannot be used here; None when a product that could overflow came out right."""
    if _ENGINE not in torch.backends.quantized.supported_engines:
        return "this torch has no FBGEMM"
    weight = torch.full((8, 64), -1.0)
    try:
        got = FbgemmLinear(Int8Format(torch.float32, None).table(weight), None)(-weight)
    except (AttributeError, RuntimeError) as error:
        return f"FBGEMM: {str(error).splitlines()[0]}"
    if not torch.allclose(got, torch.full((8, 8), -64.0), rtol=1e-3):
        return "FBGEMM gives wrong products on this CPU"
    return None


def _product() -> Any:
    """float32 [rows, in], scale, zero point, packed weight -> float32 [rows, out]."""
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default


def _pack(matrix: Int8Matrix) -> Any:
    """The weight in FBGEMM's order. The engine is a global of torch: it is put back."""
    scales = matrix.scales.flatten().double()
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE
    try:
        with warnings.catch_warnings():
            # torch says that its quantised tensors will go one day: `fbgemm_fault` will see it
            warnings.simplefilter("ignore", UserWarning)
            codes = torch._make_per_channel_quantized_tensor(matrix.codes, scales, zeros, 0)
            return torch.ops.quantized.linear_prepack(codes, None)
    finally:
        torch.backends.quantized.engine = before
