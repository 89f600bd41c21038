"""All families of models that are known: one row each, in the order in which errors list them."""

from __future__ import annotations

from pathlib import Path

from service.config.settings import ConfigError
from service.device.models.architecture import Architecture
from service.device.models.families.gemma3 import GEMMA3
from service.device.models.families.granite import GRANITE
from service.device.models.families.llama import LLAMA
from service.device.models.families.mistral import MISTRAL
from service.device.models.families.olmo2 import OLMO2
from service.device.models.families.phi3 import PHI3
from service.device.models.families.qwen2 import QWEN2
from service.device.models.families.qwen3 import QWEN3
from service.device.models.families.qwen3_moe import QWEN3_MOE

ARCHITECTURES: tuple[Architecture, ...] = (
    LLAMA,  # SmolLM2 too
    MISTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    GEMMA3,
    PHI3,  # Phi-4 too
    OLMO2,
    GRANITE,
)


def architecture_of_config(path: Path, hf_name: str) -> Architecture:
    """By the name in config.json. Raises ConfigError."""
    for architecture in ARCHITECTURES:
        if architecture.hf_name == hf_name:
            return architecture
    supported = ", ".join(one.hf_name for one in ARCHITECTURES)
    raise ConfigError(f"{path}: architecture {hf_name}; supported are {supported}")


def architecture_of_gguf(path: Path, gguf_name: object) -> Architecture:
    """By the name in the file's metadata. Raises ConfigError."""
    for architecture in ARCHITECTURES:
        if architecture.gguf_name == gguf_name:
            return architecture
    supported = ", ".join(one.gguf_name for one in ARCHITECTURES)
    raise ConfigError(f"{path} is a {gguf_name} model; supported are {supported} (SmolLM is llama)")
