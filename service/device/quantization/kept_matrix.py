"""Matrices in the form that a checkpoint holds them in: 4-bit integers, fp8, blocks of GGUF.

A source that has them answers `kept`; a back end that has a product for the form multiplies it as
it is, and the others ask for the same matrix as floats. What a form means is defined here once, by
`dequantized`; every product is tested against it, and it against readers that others wrote.

    int4    weight = scale * (nibble - zero point), both of an output and a group of inputs
    fp8     weight = scale * e4m3, the scale of a rectangle of outputs and inputs
    gguf    ggml's block structs
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from service.device.quantization.kept_kinds import KeptForm, KeptKind
from service.model_files.gguf_blocks import BlockFormat, dequantize_blocks

_HALF = torch.float16


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """`codes` uint8 [out, in / 2], input 2k in the lower half of a byte; `scales`, as wide as the
    file's, and `zeros` uint8 [out, groups]. Stored input k multiplies input `order[k]` of a row
    (int32 [in], desc_act), or k where there is no order."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    order: torch.Tensor | None = None

    @property
    def kind(self) -> KeptKind:
        return KeptKind.INT4

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def halves(self) -> torch.Tensor | None:
        """The scales as float16, None where that would round one of them."""
        narrow = self.scales.to(_HALF)
        return narrow if torch.equal(narrow.float(), self.scales.float()) else None

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in], inputs in the order of a row."""
        return self.rows(torch.arange(self.shape[0], device=self.codes.device))

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """float32 [ids, in] of int64 [ids]."""
        codes = self.codes[ids]
        values = torch.stack((codes & 15, codes >> 4), dim=-1).view(len(ids), -1, self.group)
        wide = values.float().sub_(self.zeros[ids][..., None])
        flat = wide.mul_(self.scales[ids][..., None].float()).view(len(ids), -1)
        if self.order is None:
            return flat
        found = torch.empty_like(flat)
        found[:, self.order.long()] = flat
        return found

    def part(self, rows: slice, columns: slice) -> Int4Matrix | None:
        """Some outputs and inputs of it; None where columns cut a group, or inputs have an order
        of their own."""
        wide = self.shape[1]
        begin, end, _ = columns.indices(wide)
        if (begin, end) == (0, wide):
            return replace(
                self, codes=self.codes[rows], scales=self.scales[rows], zeros=self.zeros[rows]
            )
        if self.order is not None or begin % self.group or end % self.group:
            return None
        groups = slice(begin // self.group, end // self.group)
        return Int4Matrix(
            self.codes[rows, begin // 2 : end // 2].contiguous(),
            self.scales[rows, groups].contiguous(),
            self.zeros[rows, groups].contiguous(),
        )

    def to(self, device: torch.device) -> Int4Matrix:
        order = None if self.order is None else self.order.to(device)
        return Int4Matrix(
            self.codes.to(device), self.scales.to(device), self.zeros.to(device), order
        )


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """`codes` float8_e4m3fn [out, in]; `scales` float32 [out, groups], of every `group` inputs, the
    last of them perhaps fewer."""

    codes: torch.Tensor
    scales: torch.Tensor
    group: int

    @property
    def kind(self) -> KeptKind:
        return KeptKind.FP8

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in]."""
        return self.rows(torch.arange(self.shape[0], device=self.codes.device))

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """float32 [ids, in] of int64 [ids]."""
        codes = self.codes.view(torch.int8)[ids].view(self.codes.dtype)
        scales = self.scales[ids].repeat_interleave(self.group, 1)[:, : self.shape[1]]
        return codes.float().mul_(scales)

    def part(self, rows: slice, columns: slice) -> Fp8Matrix | None:
        """Some outputs and inputs of it; None where columns cut a group."""
        wide = self.shape[1]
        begin, end, _ = columns.indices(wide)
        codes = self.codes.view(torch.int8)[rows, begin:end].contiguous().view(self.codes.dtype)
        if self.group >= wide:
            return Fp8Matrix(codes, self.scales[rows], end - begin)
        if begin % self.group or (end % self.group and end != wide):
            return None
        groups = slice(begin // self.group, -(-end // self.group))
        return Fp8Matrix(codes, self.scales[rows, groups].contiguous(), self.group)

    def to(self, device: torch.device) -> Fp8Matrix:
        return Fp8Matrix(self.codes.to(device), self.scales.to(device), self.group)


@dataclass(frozen=True, slots=True)
class GgufMatrix:
    """Blocks of one `format` as in the file, uint8 [out, bytes]."""

    format: BlockFormat
    blocks: NDArray[np.uint8]

    @property
    def kind(self) -> KeptKind:
        return KeptKind(self.format.name)

    @property
    def shape(self) -> tuple[int, int]:
        rows, row_bytes = self.blocks.shape
        return rows, row_bytes // self.format.block_bytes * self.format.block_values

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in]."""
        return torch.from_numpy(dequantize_blocks(self.blocks, self.format))

    def part(self, rows: slice, columns: slice) -> GgufMatrix | None:
        """Some outputs and inputs of it; None where columns cut a block."""
        begin, end, _ = columns.indices(self.shape[1])
        if begin % self.format.block_values or end % self.format.block_values:
            return None
        first, last = (
            at // self.format.block_values * self.format.block_bytes for at in (begin, end)
        )
        return GgufMatrix(self.format, np.ascontiguousarray(self.blocks[rows, first:last]))


KeptMatrix = Int4Matrix | Fp8Matrix | GgufMatrix


@runtime_checkable
class KeptSource(Protocol):
    """A source of weights some of which have such a form, by canonical name."""

    def kept_form(self, name: str) -> KeptForm | None:
        """What the headers say; None for floats and for forms that are only widened."""
        ...

    def kept(self, name: str) -> KeptMatrix | None:
        """The matrix itself, where `kept_form` says that there is one. Raises ConfigError."""
        ...


def kept_form(source: object, name: str) -> KeptForm | None:
    return source.kept_form(name) if isinstance(source, KeptSource) else None


def kept_matrix(
    source: object, name: str, shape: tuple[int, int], kinds: Collection[KeptKind]
) -> KeptMatrix | None:
    """None where the source has floats of that name, or a kind that is not in `kinds`. Raises
    ConfigError."""
    form = kept_form(source, name)
    if form is None or form.kind not in kinds or not isinstance(source, KeptSource):
        return None
    found = source.kept(name)
    assert found is not None and found.shape == shape, (name, shape)  # noqa: PT018
    return found
