"""Weights in fp8 (e4m3) times scales, as DeepSeek, Qwen, AutoFP8 and compressed-tensors write it.

    weight            float8_e4m3fn [out, in]
    weight_scale_inv  float [out / rows, in / columns], rounded up: of blocks (`weight_block_size`)
    weight_scale      one, or one an output, or of blocks
    input_scale       one, with static activations

In spite of its name `weight_scale_inv` is multiplied with. Activations are not rounded to fp8 here,
so their scales change nothing; they are checked, so that a broken file is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from service.config.settings import ConfigError
from service.device.quantization.kept_kinds import KeptForm, KeptKind
from service.device.quantization.kept_matrix import Fp8Matrix
from service.device.weights.quantised.awq import read_names
from service.device.weights.quantised.scheme import (
    FLOATS,
    Found,
    GetTensor,
    Module,
    expect,
    matrix_shape,
    scales_of,
)
from service.model_files.strict_keys import IgnoredKey, StrictKeys

_NO_NUMBER = 0x7F  # with either sign; e4m3fn has no infinities
_SCALE_BITS = 32
_IGNORED = {
    "scale_fmt": IgnoredKey("scales are stored as floats", only=("ue8m0", "float")),
    "kv_cache_scheme": IgnoredKey("the KV cache is rounded by --kv-dtype only", only=({},)),
    "kv_cache_quant_method": IgnoredKey("the KV cache is rounded by --kv-dtype only", only=("",)),
    "is_checkpoint_fp8_serialized": IgnoredKey("the tensors say so", only=(True,)),
}


@dataclass(frozen=True, slots=True)
class Fp8:
    """Implements `Scheme`. `mark` is what the scales are called, `block` (outputs, inputs) of one
    where they are of blocks; `left_out` tells modules that are as they were."""

    mark: str
    block: tuple[int, int] | None
    has_input_scales: bool
    left_out: Callable[[str], bool]

    @property
    def suffixes(self) -> frozenset[str]:
        return frozenset({"weight", self.mark, "input_scale"})

    def module(self, path: Path, stem: str, parts: Found) -> Module:
        outputs, inputs = matrix_shape(path, stem, parts, "weight", {"F8_E4M3"})
        if self.block is not None:
            rows, columns = self.block
            blocks = (-(-outputs // rows), -(-inputs // columns))
            expect(path, stem, parts, self.mark, FLOATS, blocks)
            group = min(columns, inputs)
        else:
            expect(path, stem, parts, self.mark, FLOATS, (), (1,), (1, 1), (outputs,), (outputs, 1))
            group = inputs
        if self.has_input_scales:
            expect(path, stem, parts, "input_scale", FLOATS, (), (1,))
        elif "input_scale" in parts:
            raise ConfigError(
                f"{path}: tensor {stem}.input_scale: activations are not static by "
                "quantization_config; use another checkpoint"
            )
        form = KeptForm(KeptKind.FP8, 8 + _SCALE_BITS / group, group)
        return Module(stem, parts, (outputs, inputs), form)

    def read(self, path: Path, module: Module, get: GetTensor) -> Fp8Matrix:
        outputs, _ = module.shape
        codes = get("weight")
        if bool(((codes.view(torch.uint8) & _NO_NUMBER) == _NO_NUMBER).any()):
            raise ConfigError(f"{path}: tensor {module.stem}.weight has values that are no numbers")
        scales = scales_of(path, f"{module.stem}.{self.mark}", get(self.mark)).float()
        if self.has_input_scales:
            static = scales_of(path, f"{module.stem}.input_scale", get("input_scale"))
            if not bool((static > 0).all()):
                raise ConfigError(f"{path}: tensor {module.stem}.input_scale is not above 0")
        if self.block is not None:
            scales = scales.repeat_interleave(self.block[0], 0)[:outputs]
        elif scales.numel() == 1:
            scales = scales.reshape(1, 1).expand(outputs, 1)
        else:
            scales = scales.reshape(outputs, 1)
        return Fp8Matrix(codes, scales.contiguous(), module.form.group)

    def is_left_out(self, stem: str) -> bool:
        return self.left_out(stem)


def read_fp8(stated: StrictKeys) -> Fp8:
    """From `quantization_config` of quant_method fp8. Raises ConfigError."""
    kind = stated.take("fmt", "e4m3")
    if kind != "e4m3":
        raise stated.refused("fmt", kind, "e4m3 is read")
    activations = stated.take("activation_scheme", "dynamic")
    if activations not in ("dynamic", "static"):
        raise stated.refused("activation_scheme", activations, "dynamic and static are read")
    block = read_block(stated, "weight_block_size")
    names = read_names(stated, "modules_to_not_convert") + read_names(stated, "ignored_layers")
    stated.finish(_IGNORED)
    return Fp8(
        mark="weight_scale" if block is None else "weight_scale_inv",
        block=block,
        has_input_scales=activations == "static",
        left_out=lambda stem: any(is_within(stem, name) for name in names),
    )


def is_within(stem: str, name: str) -> bool:
    """Whether a module is the one of that name, or is inside of it."""
    return f".{name}." in f".{stem}."


def read_block(stated: StrictKeys, key: str) -> tuple[int, int] | None:
    """[outputs, inputs] of a block. Raises ConfigError."""
    size = stated.take(key)
    if size is None:
        return None
    whole = isinstance(size, list) and all(type(number) is int and number > 0 for number in size)
    if not whole or len(size) != 2 or math.prod(size) == 0:
        raise stated.refused(key, size, "two whole numbers are expected")
    return size[0], size[1]
