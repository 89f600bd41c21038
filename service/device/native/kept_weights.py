"""Weights that a checkpoint holds in a narrow form, into the library's panels as they are.

Queries, keys and values are one matrix there, and files mix forms within it (Q4_K_M has values in
6 bits): so a matrix comes in parts of 16 outputs or more, each of its own form. All parts of one
product read the same rows, and so share one order of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import torch

from service.config.settings import ConfigError
from service.device.native.library import (
    KeptNumbers,
    Library,
    MatrixName,
    NumberKind,
    PartStruct,
    floats_at,
)
from service.device.quantization.kept_kinds import KeptForm, KeptKind
from service.device.quantization.kept_matrix import Fp8Matrix, GgufMatrix, Int4Matrix, KeptMatrix

PANEL_OUTPUTS = 16
GROUP_STEP = 32  # inputs of an int4 group come in so many
_BLOCKS = {
    KeptKind.Q8_0: KeptNumbers.Q8_BLOCKS,
    KeptKind.Q4_K: KeptNumbers.Q4_BLOCKS,
    KeptKind.Q6_K: KeptNumbers.Q6_BLOCKS,
}


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """Some outputs, kept or as float32 [out, in] for a plain `kind`, with their own bias."""

    name: str
    weight: KeptMatrix | torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def order(self) -> torch.Tensor | None:
        return self.weight.order if isinstance(self.weight, Int4Matrix) else None


def pack_parts(
    library: Library, layer: int, which: MatrixName, parts: list[MatrixPart], plain: NumberKind
) -> None:
    """One matrix from its parts, in the order of their outputs. Raises ConfigError for what the
    library cannot multiply as one."""
    weights = [part.weight for part in parts if isinstance(part.weight, torch.Tensor)]
    if len(weights) == len(parts):
        biases = [part.bias for part in parts if part.bias is not None]
        bias = torch.cat(biases) if biases else None
        return library.set_matrix(layer, which, torch.cat(weights), bias)
    order = common_order(parts)
    first = 0
    for index, part in enumerate(parts):
        rows = part.weight.shape[0]
        if rows % PANEL_OUTPUTS and index < len(parts) - 1:
            raise _refused(part.name, f"its {rows} outputs are no whole panels of {PANEL_OUTPUTS}")
        _pack_part(library, layer, which, first, part, plain)
        first += rows
    if order is not None:
        library.set_order(layer, which, order.int().contiguous())


def common_order(parts: list[MatrixPart]) -> torch.Tensor | None:
    """The order of inputs that all parts of a product share. Raises ConfigError."""
    first = parts[0]
    for other in parts[1:]:
        same = other.order is first.order or (
            other.order is not None
            and first.order is not None
            and torch.equal(other.order, first.order)
        )
        if not same:
            raise _refused(other.name, f"its inputs have another order than those of {first.name}")
    return first.order


def _pack_part(
    library: Library,
    layer: int,
    which: MatrixName,
    first: int,
    part: MatrixPart,
    plain: NumberKind,
) -> None:
    weight = part.weight
    struct = PartStruct(first=first, rows=weight.shape[0])
    if part.bias is not None:
        struct.bias = floats_at(part.bias)
    match weight:
        case torch.Tensor():
            struct.kind, struct.codes = plain, floats_at(weight)
            library.set_part(layer, which, struct)
        case GgufMatrix():
            struct.kind, struct.codes = _BLOCKS[weight.kind], weight.blocks.ctypes.data
            library.set_part(layer, which, struct)
        case Fp8Matrix():
            codes, scales = weight.codes.contiguous(), weight.scales.contiguous()
            struct.kind, struct.group = KeptNumbers.FP8, weight.group
            struct.codes, struct.scales = codes.data_ptr(), floats_at(scales)
            library.set_part(layer, which, struct)
        case Int4Matrix():
            _pack_int4(library, layer, which, struct, weight, part.name)
        case _:
            assert_never(weight)


def _pack_int4(
    library: Library,
    layer: int,
    which: MatrixName,
    struct: PartStruct,
    weight: Int4Matrix,
    name: str,
) -> None:
    if weight.group % GROUP_STEP:
        raise _refused(name, _odd_group(weight.group))
    codes, zeros, halves = weight.codes.contiguous(), weight.zeros.contiguous(), weight.halves
    scales = weight.scales.float().contiguous()
    struct.kind = KeptNumbers.INT4_WIDE if halves is None else KeptNumbers.INT4
    struct.group, struct.codes = weight.group, codes.data_ptr()
    struct.scales, struct.zeros = floats_at(scales), zeros.data_ptr()
    struct.halves = None if halves is None else halves.data_ptr()
    library.set_part(layer, which, struct)


def unsupported_forms(forms: Mapping[str, KeptForm]) -> str | None:
    """Why the library cannot multiply one of these matrices; None when it can all."""
    for name, form in forms.items():
        if form.kind is KeptKind.INT4 and form.group % GROUP_STEP:
            return str(_refused(name, _odd_group(form.group)))
    return None


def _odd_group(group: int) -> str:
    return f"its groups of {group} inputs are no multiple of {GROUP_STEP}"


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"the C++ decoder cannot multiply {name} as it is stored: {why}; add --weights float, "
        "which widens it, or --executor torch"
    )
