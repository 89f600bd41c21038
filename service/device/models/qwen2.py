"""Qwen2 and Qwen2.5: queries, keys and values have biases, whatever `attention_bias` says.

A sliding window is in effect only where `use_sliding_window` switches it on.
"""

from __future__ import annotations

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.spec import ModelSpec
from service.model_files.stated import Stated

_FAMILY = "qwen2"


def _from_config(config: Stated) -> ModelSpec:
    return read_spec(config, _FAMILY, qkv_bias=True)


def _from_gguf(config: GgufConfig) -> ModelSpec:
    return read_gguf_spec(config, _FAMILY)


QWEN2 = Architecture(
    family=_FAMILY,
    hf_name="Qwen2ForCausalLM",
    gguf_name="qwen2",
    spec_from_config=_from_config,
    spec_from_gguf=_from_gguf,
)
