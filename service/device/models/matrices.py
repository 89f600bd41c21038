"""A product of a model from its tensors by name: fused, and kept in the checkpoint's form where
the back end multiplies that."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from service.device.models.tensors import HEAD, tensor_shape
from service.device.models.weight_source import WeightSource, checked
from service.device.quantization.kept_kinds import KeptKind
from service.device.quantization.kept_linear import KeptFormat
from service.device.quantization.kept_matrix import KeptMatrix, kept_matrix
from service.device.quantization.linear import Linear, MatrixFormat
from service.device.quantization.precision import Precision


def kept_kinds(matrices: MatrixFormat) -> Collection[KeptKind]:
    """The forms in which matrices stay as a checkpoint stores them."""
    return matrices.kinds if isinstance(matrices, KeptFormat) else ()


@dataclass(frozen=True, slots=True)
class MatrixReader:
    """Reads matrices of `source` for one back end."""

    source: WeightSource
    precision: Precision
    matrices: MatrixFormat
    device: torch.device

    def linear(self, names: Sequence[str], bias: torch.Tensor | None = None) -> Linear:
        """One product of several tensors, their outputs one after the other. Raises ConfigError."""
        if isinstance(self.matrices, KeptFormat):
            kept = [self._kept(name, self.matrices.kinds) for name in names]
            if any(matrix is not None for matrix in kept):
                found = [
                    self._floats(name) if matrix is None else matrix
                    for name, matrix in zip(names, kept, strict=True)
                ]
                return self.matrices.joined(found, bias)
        fused = torch.cat([self._floats(name) for name in names])
        return self.matrices.linear(fused.to(self.device), bias)

    def _kept(self, name: str, kinds: Collection[KeptKind]) -> KeptMatrix | None:
        return kept_matrix(self.source, name, self._shape(name), kinds)

    def _floats(self, name: str) -> torch.Tensor:
        return self.precision.convert(checked(self.source.tensor(name), name, self._shape(name)))

    def _shape(self, name: str) -> tuple[int, int]:
        spec = self.source.spec
        outputs, inputs = tensor_shape(spec, name)
        return (spec.head_rows if name == HEAD else outputs), inputs
