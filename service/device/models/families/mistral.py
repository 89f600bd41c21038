"""Mistral 7B: a Llama whose attention has a sliding window.

The window is in effect unless config.json has `sliding_window: null`; a file that is silent has
one of 4096 tokens, as transformers reads it. Most GGUF files of Mistral say that they are llama.
"""

from __future__ import annotations

from functools import partial

from service.device.models.architecture import Architecture
from service.device.models.config_reader import (
    WINDOW_TOKENS,
    layer_windows,
    read_spec,
    read_window,
)
from service.model_files.strict_keys import StrictKeys


def _windows(config: StrictKeys, layers: int) -> tuple[int | None, ...]:
    config.flag("use_sliding_window", True)  # `sliding_window` alone decides
    config.take("max_window_layers")
    return layer_windows(config, layers, read_window(config, WINDOW_TOKENS), lambda layer: True)


MISTRAL = Architecture(
    family="mistral",
    hf_name="MistralForCausalLM",
    gguf_name="mistral",
    read_config=partial(read_spec, windows=_windows),
)
