"""What a decoder asks of weights: a tensor by its canonical name.

Canonical names are those of a Llama checkpoint of Hugging Face
(`model.layers.0.self_attn.q_proj.weight`), and so are the layouts: linear weights [out, in],
rotary pairs head_dim / 2 apart. Who answers is in `service.device.weights`.
"""

from __future__ import annotations

from typing import Protocol

import torch

from service.config.settings import ConfigError
from service.device.spec import ModelSpec


class WeightSource(Protocol):
    """Where tensors come from. `tensor` raises ConfigError for a name it lacks."""

    @property
    def spec(self) -> ModelSpec: ...

    def tensor(self, name: str) -> torch.Tensor: ...


def checked(tensor: torch.Tensor, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor, if it has the shape that the model's configuration implies."""
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor
