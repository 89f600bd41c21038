"""Qwen2 and Qwen2.5: queries, keys and values have biases, whatever `attention_bias` says.

A sliding window is in effect only where `use_sliding_window` switches it on.
"""

from __future__ import annotations

from functools import partial

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec

QWEN2 = Architecture(
    family="qwen2",
    hf_name="Qwen2ForCausalLM",
    gguf_name="qwen2",
    read_config=partial(read_spec, qkv_bias=True),
)
