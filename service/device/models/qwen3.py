"""Qwen3 (dense): each head of queries and keys is normed before it is turned, and has 128 values
unless `head_dim` says otherwise.

A sliding window is in effect only where `use_sliding_window` switches it on.
"""

from __future__ import annotations

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.spec import ModelSpec
from service.model_files.stated import Stated

_FAMILY = "qwen3"
_HEAD_DIM = 128


def _from_config(config: Stated) -> ModelSpec:
    return read_spec(config, _FAMILY, head_dim=_HEAD_DIM, qk_norm=True)


def _from_gguf(config: GgufConfig) -> ModelSpec:
    return read_gguf_spec(config, _FAMILY)


QWEN3 = Architecture(
    family=_FAMILY,
    hf_name="Qwen3ForCausalLM",
    gguf_name="qwen3",
    spec_from_config=_from_config,
    spec_from_gguf=_from_gguf,
)
