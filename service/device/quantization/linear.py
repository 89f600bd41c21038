"""Matrix products behind one call, so that the decoder need not know how weights are held."""

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
    """A matrix of which both is wanted."""


class MatrixFormat(Protocol):
    """How matrices are held and which kernel multiplies them."""

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
    """What a decoder that has a part of each matrix adds to its products for the whole's."""

    def summed(self, product: Product) -> Product:
        """For one of which the decoder has some of the inputs."""
        ...

    def gathered(self, product: Product) -> Product:
        """For one of which the decoder has some of the outputs."""
        ...


class Whole:
    """Implements `Partition` where nothing is shared out."""

    def summed(self, product: Product) -> Product:
        return product

    def gathered(self, product: Product) -> Product:
        return product


FLOATS = FloatFormat()
WHOLE = Whole()
