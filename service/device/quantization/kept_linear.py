"""Products with kept matrices in torch: dequantised in tiles, or by a kernel of ours on a GPU.

On a CPU a tile is a few megabytes of floats, so that neither the whole matrix is widened at once
nor a product split into slivers; on a GPU, where each tile is a dozen launches, most matrices are
one. Matrices that are fused but lie differently (other groups, another order of inputs) stay apart
and their outputs are joined.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from service.device.quantization.kept_kinds import KeptKind
from service.device.quantization.kept_matrix import Fp8Matrix, GgufMatrix, Int4Matrix, KeptMatrix
from service.device.quantization.linear import FloatFormat, FloatLinear, Linear

TILE_VALUES = 1 << 21
_GPU_TILE_VALUES = 1 << 26
_TorchMatrix = Int4Matrix | Fp8Matrix


@dataclass(frozen=True, slots=True)
class KeptFormat(FloatFormat):
    """Implements `MatrixFormat` for `--weights auto`: floats, and what the checkpoint holds in
    another form in that form. Results are of `compute`."""

    compute: torch.dtype
    device: torch.device
    kinds: frozenset[KeptKind]

    def joined(
        self, parts: Sequence[KeptMatrix | torch.Tensor], bias: torch.Tensor | None
    ) -> Linear:
        """One product of the outputs of `parts`, each of floats of the compute dtype or kept."""
        sizes = [part.shape[0] for part in parts]
        linears, first = [], 0
        for part, size in zip(parts, sizes, strict=True):
            own = None if bias is None else bias[first : first + size]
            linears.append(self._linear(part, own))
            first += size
        return linears[0] if len(linears) == 1 else JoinedLinear(linears, sizes)

    def _linear(self, part: KeptMatrix | torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if isinstance(part, torch.Tensor):
            return FloatLinear(part.to(self.device), bias)
        assert not isinstance(part, GgufMatrix), "blocks are widened for torch"
        matrix = part.to(self.device)
        if self.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
            from service.device.quantization.triton_kept import KernelLinear

            return KernelLinear(matrix, bias, self.compute)
        return TiledLinear(matrix, bias, self.compute)


class TiledLinear:
    """A product that widens a tile of outputs at a time."""

    def __init__(
        self, matrix: _TorchMatrix, bias: torch.Tensor | None, compute: torch.dtype
    ) -> None:
        self._matrix = matrix
        self._bias = bias
        self._compute = compute
        on_gpu = matrix.codes.device.type == "cuda"
        values = _GPU_TILE_VALUES if on_gpu else TILE_VALUES
        self._tile = max(1, values // matrix.shape[1])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self._matrix.shape[0]
        out = x.new_empty((len(x), outputs))
        if not len(x):
            return out
        for first in range(0, outputs, self._tile):
            ids = torch.arange(first, min(first + self._tile, outputs), device=x.device)
            out[:, first : first + len(ids)] = functional.linear(x, self.rows(ids))
        return out if self._bias is None else out.add_(self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._matrix.rows(ids).to(self._compute)


class JoinedLinear:
    """Several products of the same rows, side by side."""

    def __init__(self, parts: Sequence[Linear], sizes: Sequence[int]) -> None:
        self._parts = parts
        self._sizes = sizes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self._parts], dim=-1)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Each part is asked for all ids, and those of the others are left out."""
        found, first = None, 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            inside = (ids >= first) & (ids < first + size)
            values = part.rows((ids - first).clamp(0, size - 1))
            found = values if found is None else torch.where(inside[:, None], values, found)
            first += size
        assert found is not None, "a product has parts"
        return found
