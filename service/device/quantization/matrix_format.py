"""Weights in 8 bits: one scale an output, symmetric, and the kernels that multiply them.

Torch's int8 product on x86 (FBGEMM) wants int8 activations too. Rounding them to 8 bits
ruins small models: SmolLM2-135M's perplexity rises by 5 % with one scale a row and by
92 % with torch's own one scale a tensor. So each activation is split into two digits,

    x = scale * (high + low / 126)      high, low integers in [-63, 63]

both digits of all rows go through one integer product, and the two halves of its result
are added: 14 bits, the quality of weight-only int8. Digits have 7 bits because without
VNNI the instruction adds pairs of products in 16 bits, and 127 * 127 * 2 is the most that
fits. Price: twice the rows, so that beyond `_DIGIT_ROWS` rows a float product with the
weight dequantised on the fly is faster; the int8 values are therefore kept beside the packed
weight, 2 bytes a weight in all. Results differ between the two ways by rounding (1e-4).

On a GPU int8 weights are read as they are by a kernel of our own for few tokens, where reading
them is what takes the time, and dequantised for many. Fp8 is in `fp8.py`.
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from service.device.quantization.fp8 import Fp8Format, fp8_fault
from service.device.quantization.kept_formats import KERNELS, WeightsBackend
from service.device.quantization.kept_linear import KeptFormat
from service.device.quantization.linear import FLOATS, Linear, MatrixFormat
from service.device.quantization.quantized_matrix import DequantizedLinear, QuantizedMatrix

_DIGIT_MAX = 63.0
_LOW_STEPS = 2 * _DIGIT_MAX
_ZERO_POINT = 64
_DIGIT_ROWS = 128
_ENGINE = "fbgemm"


def choose_matrix_format(
    weights_format: str, compute: torch.dtype, device: torch.device
) -> MatrixFormat:
    """`auto` keeps floats, and what is quantised as it is; others take the fastest kernel that
    gives right results here."""
    if weights_format == "auto":
        backend = WeightsBackend.of_torch(device.type)
        return KeptFormat(compute, device, frozenset(KERNELS[backend]))
    if weights_format == "float":
        return FLOATS
    if weights_format == "fp8":
        return Fp8Format(compute, fp8_fault(device))
    if device.type == "cpu":
        return Int8Format(compute, fbgemm_fault())
    if importlib.util.find_spec("triton") is None:
        return Int8Format(compute, "Triton is not installed")
    return Int8Format(compute, None, on_gpu=True)


@dataclass(frozen=True, slots=True)
class Int8Format:
    """Implements `MatrixFormat`. `fallback_reason` None means that a kernel multiplies int8:
    FBGEMM, or ours where it is `on_gpu`."""

    compute: torch.dtype
    fallback_reason: str | None
    on_gpu: bool = False

    @property
    def label(self) -> str:
        if self.on_gpu:
            return "int8 weights, our Triton kernel (dequantised for many tokens)"
        if self.fallback_reason is None:
            return (
                "int8 weights, torch FBGEMM (activations as two 7-bit digits; dequantised "
                f"above {_DIGIT_ROWS} tokens)"
            )
        return f"int8 weights, dequantised (fallback: {self.fallback_reason})"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        matrix = self.table(weight)
        if self.on_gpu:
            from service.device.quantization.triton_products import QuantizedLinear

            return QuantizedLinear(matrix, bias)
        if self.fallback_reason is None:
            return FbgemmLinear(matrix, bias)
        return DequantizedLinear(matrix, bias)

    def table(self, weight: torch.Tensor) -> QuantizedMatrix:
        return QuantizedMatrix.of(weight, torch.int8, self.compute)


class FbgemmLinear:
    """Integer products for few tokens, a dequantised one for many."""

    def __init__(self, matrix: QuantizedMatrix, bias: torch.Tensor | None) -> None:
        self._many = DequantizedLinear(matrix, bias)
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


def _pack(matrix: QuantizedMatrix) -> Any:
    """The weight in FBGEMM's order. The engine is a global of torch: it is put back."""
    scales = matrix.scales.flatten().double()
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE
    try:
        with warnings.catch_warnings():
            # torch says that its quantised tensors will go one day: `fbgemm_fault` will see it
            warnings.simplefilter("ignore", UserWarning)
            quantized = torch._make_per_channel_quantized_tensor(matrix.quantized, scales, zeros, 0)
            return torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = before
