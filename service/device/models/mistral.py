"""Mistral 7B: a Llama whose attention has a sliding window.

The window is in effect unless config.json has `sliding_window: null`; a file that is silent has
one of 4096 tokens, as transformers reads it. Most GGUF files of Mistral say that they are llama.
"""

from __future__ import annotations

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec, read_window
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.spec import ModelSpec
from service.model_files.stated import Stated

_FAMILY = "mistral"
_WINDOW_TOKENS = 4096


def _window(config: Stated) -> int | None:
    config.flag("use_sliding_window", True)  # `sliding_window` alone decides
    return read_window(config, _WINDOW_TOKENS)


def _from_config(config: Stated) -> ModelSpec:
    return read_spec(config, _FAMILY, sliding_window=_window)


def _from_gguf(config: GgufConfig) -> ModelSpec:
    return read_gguf_spec(config, _FAMILY)


MISTRAL = Architecture(
    family=_FAMILY,
    hf_name="MistralForCausalLM",
    gguf_name="mistral",
    spec_from_config=_from_config,
    spec_from_gguf=_from_gguf,
)
