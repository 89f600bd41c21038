"""OLMo 2: what attention and feed-forward give is normed before it is added, not what they get, and
queries and keys are normed over all heads together.
"""

from __future__ import annotations

from dataclasses import replace

from service.device.models.architecture import Architecture
from service.device.models.config_reader import read_spec
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.models.tensors import ATTENTION_OUT_NORM, FFN_OUT_NORM, GGUF_NAMES, HF_NAMES
from service.device.spec import ModelSpec
from service.model_files.strict_keys import StrictKeys

_NORM_EPS = 1e-5


def _placed(spec: ModelSpec) -> ModelSpec:
    return replace(spec, qk_norm=True, wide_qk_norm=True, input_norms=False, output_norms=True)


def _read(config: StrictKeys, family: str) -> ModelSpec:
    return _placed(read_spec(config, family, norm_eps=_NORM_EPS))


def _read_gguf(config: GgufConfig, family: str) -> ModelSpec:
    """Files of OLMo 3 say that they are olmo2 too, and have a window in some layers."""
    pattern = config.take("attention.sliding_window_pattern")
    if pattern is not None:
        raise config.refused("attention.sliding_window_pattern", pattern, "this is an OLMo 3")
    return _placed(read_gguf_spec(config, family))


OLMO2 = Architecture(
    family="olmo2",
    hf_name="Olmo2ForCausalLM",
    gguf_name="olmo2",
    read_config=_read,
    read_gguf=_read_gguf,
    hf_tensors=replace(
        HF_NAMES,
        parts={
            **HF_NAMES.parts,
            ATTENTION_OUT_NORM: "post_attention_layernorm",
            FFN_OUT_NORM: "post_feedforward_layernorm",
        },
    ),
    gguf_tensors=replace(
        GGUF_NAMES,
        parts={
            **GGUF_NAMES.parts,
            ATTENTION_OUT_NORM: "post_attention_norm",
            FFN_OUT_NORM: "post_ffw_norm",
        },
    ),
)
