"""Mistral 7B: a Llama whose attention has a sliding window.

The window is in effect unless config.json has `sliding_window: null`; a file that is silent has
one of 4096 tokens, as transformers reads it. Most GGUF files of Mistral say that they are llama.
"""

from __future__ import annotations

from functools import partial

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec, read_window
from service.model_files.strict_keys import StrictKeys

_WINDOW_TOKENS = 4096


def _window(config: StrictKeys) -> int | None:
    config.flag("use_sliding_window", True)  # `sliding_window` alone decides
    return read_window(config, _WINDOW_TOKENS)


MISTRAL = Architecture(
    family="mistral",
    hf_name="MistralForCausalLM",
    gguf_name="mistral",
    read_config=partial(read_spec, sliding_window=_window),
)
