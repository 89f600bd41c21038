"""Gemma 3, the text model: five layers of six have a window and a rope of their own; norms stand
before and behind attention and feed-forward, whose gate is a GELU; embeddings are multiplied by the
root of their width. Safetensors have norms as their distance from one, GGUF files as they are.

The larger checkpoints, which see images too (`Gemma3ForConditionalGeneration`), are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from service.device.models.architecture import Architecture
from service.device.models.config_reader import layer_windows, read_spec, read_window, windows_where
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.models.rope_reader import rope_of
from service.device.models.tensors import ATTENTION_OUT_NORM, FFN_OUT_NORM, GGUF_NAMES, HF_NAMES
from service.device.spec import Gate, ModelSpec, Rope
from service.model_files.strict_keys import IgnoredKey, StrictKeys

_HEAD_DIM, _CONTEXT_TOKENS, _WINDOW_TOKENS = 256, 131_072, 4096
_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0
_PATTERN = 6  # every so many layers one has no window
_LAYERS_27B = 62
_FFN_NORM = "post_attention_layernorm"  # as a Llama calls it


def _read(config: StrictKeys, family: str) -> ModelSpec:
    ropes: list[Rope] = []

    def read_ropes(config: StrictKeys, context_tokens: int, head_dim: int) -> Rope:
        """The one of layers without a window; the other one is kept."""
        whole, local = _read_ropes(config, context_tokens)
        ropes.append(local)
        return whole

    spec = read_spec(
        config,
        family,
        head_dim=_HEAD_DIM,
        context_tokens=_CONTEXT_TOKENS,
        tied_embeddings=True,
        qk_norm=True,
        windows=_windows,
        rope=read_ropes,
    )
    activation = config.take("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise config.refused("hidden_activation", activation, "Gemma 3 has a GELU in its tanh form")
    divisor = config.positive("query_pre_attn_scalar", float(_HEAD_DIM))
    cap = config.number("final_logit_softcapping", 0.0)
    return _with_what_all_have(spec, ropes[0], divisor, cap or None)


def _with_what_all_have(
    spec: ModelSpec, local_rope: Rope, divisor: float, cap: float | None
) -> ModelSpec:
    return replace(
        spec,
        local_rope=local_rope if spec.layer_windows else None,
        output_norms=True,
        exact_norms=True,
        gate=Gate.GELU,
        attention_scale=None if divisor == spec.head_dim else divisor**-0.5,
        embedding_multiplier=math.sqrt(spec.hidden),
        logit_softcap=cap,
    )


def _every(pattern: int) -> Callable[[int], bool]:
    return lambda layer: (layer + 1) % pattern != 0


def _windows(config: StrictKeys, layers: int) -> tuple[int | None, ...]:
    pattern = config.size("sliding_window_pattern", _PATTERN)
    pattern = config.size("_sliding_window_pattern", pattern)
    window = read_window(config, _WINDOW_TOKENS)
    return layer_windows(config, layers, window, _every(pattern))


def _read_ropes(config: StrictKeys, context_tokens: int) -> tuple[Rope, Rope]:
    """Of layers without and with a window; what stretches a context is for those without."""
    theta = config.positive("rope_theta", _GLOBAL_THETA)
    local_theta = config.positive("rope_local_base_freq", _LOCAL_THETA)
    new = config.part("rope_parameters")
    if new.is_empty:
        whole = rope_of(config.part("rope_scaling"), theta, context_tokens)
        return whole, Rope(theta=local_theta)
    if config.states("rope_scaling") and config.take("rope_scaling"):
        raise config.refused("rope_scaling", "beside rope_parameters", "state one of the two")
    whole = rope_of(new.part("full_attention"), theta, context_tokens)
    local = rope_of(new.part("sliding_attention"), local_theta, context_tokens)
    new.finish({})
    return whole, local


def _read_gguf(config: GgufConfig, family: str) -> ModelSpec:
    """The file states neither the attention's scale nor, mostly, the local rope and the pattern:
    llama.cpp knows them."""
    layers = config.size("block_count")
    window = config.size("attention.sliding_window", 0, least=0)
    pattern = config.size("attention.sliding_window_pattern", _PATTERN)
    local = Rope(theta=config.positive("rope.freq_base_swa", _LOCAL_THETA))
    cap = config.number("final_logit_softcapping", 0.0)
    is_local = _every(pattern)
    windows = windows_where(window or None, [is_local(layer) for layer in range(layers)])
    spec = replace(read_gguf_spec(config, family, layers=layers), layer_windows=windows)
    divisor = spec.hidden / spec.heads if layers == _LAYERS_27B else float(spec.head_dim)
    return _with_what_all_have(spec, local, divisor, cap or None)


GEMMA3 = Architecture(
    family="gemma3",
    hf_name="Gemma3ForCausalLM",
    gguf_name="gemma3",
    read_config=_read,
    read_gguf=_read_gguf,
    hf_norms_from_one=True,
    hf_tensors=replace(
        HF_NAMES,
        parts={
            **HF_NAMES.parts,
            ATTENTION_OUT_NORM: "post_attention_layernorm",
            _FFN_NORM: "pre_feedforward_layernorm",
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
    ignored_config_keys={
        "attn_logit_softcapping": IgnoredKey("scores of attention are not capped", only=()),
        "use_bidirectional_attention": IgnoredKey("tokens see what is before them", only=(False,)),
    },
)
