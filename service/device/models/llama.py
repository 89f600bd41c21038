"""Llama 2 and 3, and SmolLM2, whose files say that it is a Llama.

The plain decoder: no biases, no norms of queries and keys, rope with linear or Llama 3's scaling,
tied embeddings where the file says so. In a GGUF file its rotary pairs lie side by side.
"""

from __future__ import annotations

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.spec import ModelSpec
from service.model_files.stated import Stated

_FAMILY = "llama"


def _from_config(config: Stated) -> ModelSpec:
    return read_spec(config, _FAMILY)


def _from_gguf(config: GgufConfig) -> ModelSpec:
    return read_gguf_spec(config, _FAMILY)


LLAMA = Architecture(
    family=_FAMILY,
    hf_name="LlamaForCausalLM",
    gguf_name="llama",
    spec_from_config=_from_config,
    spec_from_gguf=_from_gguf,
    gguf_interleaves_rope=True,
)
