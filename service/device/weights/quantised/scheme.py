"""What a way to quantise a checkpoint has to state, and how its tensors become weights.

A scheme replaces a weight `X.weight` by several tensors `X.suffix`. Folding finds them by headers
alone, checks that they fit together, and puts the weight that they mean in their place, so that
whoever checks the tensors of a model sees those of an unquantised one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from service.config.settings import ConfigError
from service.device.models.tensors import StoredTensor
from service.device.quantization.kept_kinds import KeptForm, KeptKind
from service.device.quantization.kept_matrix import KeptMatrix

GetTensor = Callable[[str], torch.Tensor]
Found = Mapping[str, StoredTensor]
# what a folded weight is called: a format that needs no scale of its own
_FOLDED = "F32"
_SCALE_BITS = {"F32": 32, "F16": 16, "BF16": 16}
FLOATS = set(_SCALE_BITS)


@dataclass(frozen=True, slots=True)
class Module:
    """The tensors of one weight, by suffix, and the shape of the weight [out, in]."""

    stem: str
    parts: Found
    shape: tuple[int, int]
    form: KeptForm


class Scheme(Protocol):
    """One way. `mark` is a suffix that only its modules have, `suffixes` are all that they may
    have."""

    @property
    def mark(self) -> str: ...

    @property
    def suffixes(self) -> frozenset[str]: ...

    def module(self, path: Path, stem: str, parts: Found) -> Module:
        """Check kinds and shapes. Raises ConfigError."""
        ...

    def read(self, path: Path, module: Module, get: GetTensor) -> KeptMatrix:
        """The weight; `get` gives a tensor by its suffix. Raises ConfigError."""
        ...

    def is_left_out(self, stem: str) -> bool:
        """Whether the configuration says that this module was not quantised."""
        ...


def fold(
    path: Path, scheme: Scheme, found: Found
) -> tuple[dict[str, StoredTensor], dict[str, Module]]:
    """Headers with the scheme's tensors replaced by the weights that they mean, and its modules by
    the weight's stored name. Raises ConfigError."""
    plain = dict(found)
    modules: dict[str, Module] = {}
    for name in found:
        stem, _, suffix = name.rpartition(".")
        if suffix != scheme.mark:
            continue
        if scheme.is_left_out(stem):
            raise ConfigError(
                f"{path}: {name}: quantization_config says that {stem} was not quantised; one of "
                "the two is wrong, use another checkpoint"
            )
        parts = {
            suffix: plain.pop(f"{stem}.{suffix}")
            for suffix in sorted(scheme.suffixes)
            if f"{stem}.{suffix}" in plain
        }
        module = scheme.module(path, stem, parts)
        modules[f"{stem}.weight"] = module
        if f"{stem}.weight" in plain:
            raise ConfigError(
                f"{path}: {stem} has {name} and a weight beside it; use another checkpoint"
            )
        plain[f"{stem}.weight"] = StoredTensor(_FOLDED, module.shape)
    if not modules:
        raise ConfigError(
            f"{path}: quantization_config says that weights are quantised, but there is no tensor "
            f"*.{scheme.mark}; use another checkpoint, or remove quantization_config"
        )
    return plain, modules


def expect(
    path: Path, stem: str, parts: Found, suffix: str, kinds: set[str], *shapes: tuple[int, ...]
) -> None:
    """A part that is there, of one of `kinds` and, if any are given, of one of `shapes`. Raises
    ConfigError."""
    stored = parts.get(suffix)
    if stored is None:
        raise ConfigError(f"{path} has no tensor {stem}.{suffix}; fetch the model again")
    if stored.kind not in kinds:
        known = " or ".join(sorted(kinds))
        raise ConfigError(f"{path}: tensor {stem}.{suffix} is {stored.kind}, expected {known}")
    if shapes and stored.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise ConfigError(
            f"{path}: tensor {stem}.{suffix} has shape {list(stored.shape)}, expected {wanted}"
        )


def matrix_shape(
    path: Path, stem: str, parts: Found, suffix: str, kinds: set[str]
) -> tuple[int, int]:
    """Of a part with two dimensions. Raises ConfigError."""
    expect(path, stem, parts, suffix, kinds)
    shape = parts[suffix].shape
    if len(shape) != 2 or 0 in shape:
        raise ConfigError(
            f"{path}: tensor {stem}.{suffix} has shape {list(shape)}, expected two dimensions"
        )
    return shape[0], shape[1]


def scales_of(path: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if all are finite. Raises ConfigError."""
    if not bool(torch.isfinite(tensor).all()):
        raise ConfigError(f"{path}: tensor {name} has scales that are no numbers")
    return tensor


def groups_of(path: Path, stem: str, inputs: int, group_size: int) -> int:
    """How many groups of `group_size` inputs (-1: one of all) there are. Raises ConfigError."""
    size = inputs if group_size == -1 else group_size
    if inputs % size:
        raise ConfigError(
            f"{path}: {stem}: {inputs} inputs are no whole groups of {size}; use another checkpoint"
        )
    return inputs // size


def int4_form(parts: Found, suffix: str, group: int, is_ordered: bool = False) -> KeptForm:
    """A scale as wide as the file's and a zero point of 8 bits a group."""
    bits = 4 + (_SCALE_BITS[parts[suffix].kind] + 8) / group
    return KeptForm(KeptKind.INT4, bits, group, is_ordered)
