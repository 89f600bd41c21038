"""All families of models that are known: one row each, in the order in which errors list them."""

from __future__ import annotations

from pathlib import Path

from service.config.settings import ConfigError
from service.device.models.architecture import Architecture
from service.device.models.llama import LLAMA
from service.device.models.mistral import MISTRAL
from service.device.models.qwen2 import QWEN2
from service.device.models.qwen3 import QWEN3

ARCHITECTURES: tuple[Architecture, ...] = (
    LLAMA,  # SmolLM2 too
    MISTRAL,
    QWEN2,
    QWEN3,
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
