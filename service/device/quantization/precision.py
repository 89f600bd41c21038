"""What is stored, and what is computed with.

Many CPUs have no bf16 matrix instructions. There torch multiplies bf16 matrices an order
of magnitude slower than float32 ones, so weights are rounded to bf16 and then held, and
computed with, in float32: the same model, twice the memory, and said in the facts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_NAMES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Precision:
    """`weights` is what values are rounded to; `compute` what they are held in."""

    weights: torch.dtype
    compute: torch.dtype

    @property
    def label(self) -> str:
        """For people and for facts."""
        name = str(self.weights).removeprefix("torch.")
        if self.weights is self.compute:
            return name
        return f"{name}, held as {str(self.compute).removeprefix('torch.')}"

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.weights).to(self.compute)


def rounded(value: float, dtype: torch.dtype) -> float:
    """The nearest number of `dtype`."""
    return float(torch.tensor(value, dtype=dtype))


def choose_precision(dtype: str, device: torch.device) -> Precision:
    """The precision for `dtype` ("bfloat16" or "float32") on `device`."""
    wanted = _NAMES[dtype]
    if wanted is torch.bfloat16 and device.type == "cpu" and not cpu_multiplies_bf16():
        return Precision(torch.bfloat16, torch.float32)
    return Precision(wanted, wanted)


def cpu_multiplies_bf16() -> bool:
    """Whether oneDNN has bf16 kernels for this CPU; False where torch cannot tell."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False
