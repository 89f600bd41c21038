"""One question to every kind of weights: give me this tensor by its canonical name.

Canonical names are those of Hugging Face checkpoints (`model.layers.0.self_attn.q_proj.weight`),
and so are the layouts: linear weights [out, in], rotary halves not interleaved.
"""

from __future__ import annotations

from typing import Protocol

import torch

from service.config.settings import ConfigError, ModelKind, ModelRef
from service.device.spec import ModelSpec


class WeightSource(Protocol):
    """Where tensors come from. `tensor` raises ConfigError for a name it lacks."""

    @property
    def spec(self) -> ModelSpec: ...

    def tensor(self, name: str) -> torch.Tensor: ...


def open_weights(model: ModelRef) -> WeightSource:
    """The source of a model that is present on this machine. Raises ConfigError."""
    from service.device.weights.dummy import DummyWeights
    from service.device.weights.gguf import GgufWeights
    from service.device.weights.safetensors import SafetensorsWeights

    match model.kind:
        case ModelKind.GGUF:
            return GgufWeights(model.path)
        case ModelKind.HF_FOLDER:
            return SafetensorsWeights(model.path)
        case ModelKind.DUMMY:
            return DummyWeights(model.path)


def checked(tensor: torch.Tensor, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor, if it has the shape that the model's configuration implies."""
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor
