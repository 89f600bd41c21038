"""4-bit integers of compressed-tensors (format pack-quantized, W4A16).

    weight_packed      int32 [out, in / 8]      eight inputs a word, the first in the lowest bits
    weight_scale       float [out, groups]
    weight_zero_point  int32 [out / 8, groups]  where it is not symmetric; eight outputs a word
    weight_shape       int64 [2]                [out, in]
    weight_g_idx       int32 [in]               where inputs are grouped in another order

Codes are signed numbers plus 8; so is a zero point, which is 8 where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from service.config.settings import ConfigError
from service.device.quantization.kept_matrix import Int4Matrix
from service.device.weights.quantised.gptq import input_order
from service.device.weights.quantised.nibbles import PER_WORD, paired, unpacked
from service.device.weights.quantised.scheme import (
    FLOATS,
    Found,
    GetTensor,
    Module,
    expect,
    groups_of,
    int4_form,
    matrix_shape,
    scales_of,
)

_MIDDLE = 8


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """Implements `Scheme`; `group_size` -1 is one scale an output."""

    group_size: int
    symmetric: bool
    left_out: Callable[[str], bool]

    mark = "weight_packed"
    suffixes = frozenset(
        {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"}
    )

    def module(self, path: Path, stem: str, parts: Found) -> Module:
        outputs, words = matrix_shape(path, stem, parts, "weight_packed", {"I32"})
        inputs = words * PER_WORD
        groups = groups_of(path, stem, inputs, self.group_size)
        expect(path, stem, parts, "weight_shape", {"I64", "I32"}, (2,))
        expect(path, stem, parts, "weight_scale", FLOATS, (outputs, groups))
        if not self.symmetric:
            points = (-(-outputs // PER_WORD), groups)
            expect(path, stem, parts, "weight_zero_point", {"I32"}, points)
        elif "weight_zero_point" in parts:
            raise ConfigError(
                f"{path}: tensor {stem}.weight_zero_point: weights are symmetric by "
                "quantization_config; use another checkpoint"
            )
        if "weight_g_idx" in parts:
            expect(path, stem, parts, "weight_g_idx", {"I32"}, (inputs,))
        form = int4_form(parts, "weight_scale", inputs // groups, "weight_g_idx" in parts)
        return Module(stem, parts, (outputs, inputs), form)

    def read(self, path: Path, module: Module, get: GetTensor) -> Int4Matrix:
        outputs, _ = module.shape
        stated = tuple(get("weight_shape").tolist())
        if stated != module.shape:
            raise ConfigError(
                f"{path}: tensor {module.stem}.weight_shape says {list(stated)}, the packed weight "
                f"has {list(module.shape)}"
            )
        scales = scales_of(path, f"{module.stem}.weight_scale", get("weight_scale")).contiguous()
        zeros = torch.full(scales.shape, _MIDDLE, dtype=torch.uint8)
        if not self.symmetric:
            zeros = unpacked(get("weight_zero_point"), 0)[:outputs].contiguous()
        codes, order = unpacked(get("weight_packed"), 1), None
        if "weight_g_idx" in module.parts:
            name = f"{module.stem}.weight_g_idx"
            order = input_order(path, name, get("weight_g_idx"), module.form.group)
        if order is not None:
            codes = codes[:, order.long()]
        return Int4Matrix(paired(codes), scales, zeros, order)

    def is_left_out(self, stem: str) -> bool:
        return self.left_out(stem)
