"""Qwen3 (dense): each head of queries and keys is normed before it is turned, and has 128 values
unless `head_dim` says otherwise.

A sliding window is in effect only where `use_sliding_window` switches it on.
"""

from __future__ import annotations

from functools import partial

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec

QWEN3 = Architecture(
    family="qwen3",
    hf_name="Qwen3ForCausalLM",
    gguf_name="qwen3",
    read_config=partial(read_spec, head_dim=128, qk_norm=True),
)
