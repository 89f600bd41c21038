"""Matrix products behind one call, so that the decoder need not know how weights are stored."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional


class Table(Protocol):
    """A matrix whose rows are looked up."""

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[ids, in] in the compute dtype for int64 [ids]."""
        ...


class Product(Protocol):
    """A weight [out, in], perhaps with a bias [out]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] to [tokens, out], both of the compute dtype."""
        ...


class Linear(Table, Product, Protocol):
    """A matrix that is multiplied and looked up in (a tied embedding)."""


class MatrixFormat(Protocol):
    """How matrices are stored and which kernel multiplies them."""

    @property
    def label(self) -> str | None:
        """The kernel path, for people and for facts; None when there is nothing to say."""
        ...

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear: ...

    def table(self, weight: torch.Tensor) -> Table: ...


class FloatLinear:
    """The weight as it is."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._weight[ids]


class FloatFormat:
    """Implements `MatrixFormat`: bfloat16 or float32, torch's own product."""

    label = None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> FloatLinear:
        return FloatLinear(weight, bias)

    def table(self, weight: torch.Tensor) -> FloatLinear:
        return FloatLinear(weight)


class Partition(Protocol):
    """How the products of a rank, which has a part of each matrix, become those of the whole
    (Megatron-LM's names)."""

    def row_parallel(self, product: Product) -> Product:
        """Of a matrix of which the rank has some of the inputs: followed by an all-reduce."""
        ...

    def column_parallel(self, product: Product) -> Product:
        """Of a matrix of which the rank has some of the outputs: followed by a gather on rank 0."""
        ...


class Whole:
    """Implements `Partition` without tensor parallelism."""

    def row_parallel(self, product: Product) -> Product:
        return product

    def column_parallel(self, product: Product) -> Product:
        return product


FLOATS = FloatFormat()
WHOLE = Whole()
