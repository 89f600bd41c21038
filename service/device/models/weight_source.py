"""What a decoder asks of weights: a tensor by its canonical name.

Canonical names are those of a Llama checkpoint of Hugging Face
(`model.layers.0.self_attn.q_proj.weight`), and so are the layouts: linear weights [out, in],
rotary pairs head_dim / 2 apart. Who answers is in `service.device.weights`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch

from service.config.settings import ConfigError
from service.device.quantization.kept_kinds import KeptKind
from service.device.spec import ModelSpec


class WeightSource(Protocol):
    """Where tensors come from. `tensor` raises ConfigError for a name it lacks."""

    @property
    def spec(self) -> ModelSpec: ...

    def tensor(self, name: str) -> torch.Tensor: ...


@runtime_checkable
class ReadsAhead(Protocol):
    """A source that reads the next layer while one is converted."""

    def begin_reading(self, keeps: Collection[KeptKind]) -> None:
        """All tensors will be asked for, layer by layer, but for matrices of the kinds that
        `keeps` has, which are asked for as they are stored."""
        ...

    def end_reading(self) -> None:
        """Nothing more will be asked for: what was read ahead is dropped."""
        ...


@contextmanager
def reading(source: WeightSource, keeps: Collection[KeptKind]) -> Iterator[None]:
    """While a back end that keeps matrices of some kinds loads all weights."""
    if not isinstance(source, ReadsAhead):
        yield
        return
    source.begin_reading(keeps)
    try:
        yield
    finally:
        source.end_reading()


def checked(tensor: torch.Tensor, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor, if it has the shape that the model's configuration implies."""
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor
