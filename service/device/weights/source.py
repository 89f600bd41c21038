"""Opens the weights of a model, whatever kind of file they are in."""

from __future__ import annotations

from service.config.settings import ModelKind, ModelRef
from service.device.models.weight_source import WeightSource


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
