"""Phi-3 and Phi-4, whose files say that they are a Phi3: a Llama of which each layer has queries,
keys and values in one tensor, and gate and up in one. Phi-4-mini rotates a part of each head, and
stretches its context with LongRoPE.

A window is in every layer, as transformers reads it; llama.cpp passes over it.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from service.config.settings import ConfigError
from service.device.models.architecture import Architecture
from service.device.models.config_reader import layer_windows, read_spec, read_window
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.models.rope_reader import read_rope
from service.device.models.tensors import GGUF_NAMES, HF_NAMES
from service.device.spec import ModelSpec, Rope, RopeScaling
from service.model_files.strict_keys import IgnoredKey, StrictKeys

_CONTEXT_TOKENS = 4096
_NORM_EPS = 1e-5
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def _read(config: StrictKeys, family: str) -> ModelSpec:
    return read_spec(
        config,
        family,
        context_tokens=_CONTEXT_TOKENS,
        norm_eps=_NORM_EPS,
        windows=_windows,
        rope=_read_rope,
    )


def _windows(config: StrictKeys, layers: int) -> tuple[int | None, ...]:
    return layer_windows(config, layers, read_window(config, None), lambda layer: True)


def _read_rope(config: StrictKeys, context_tokens: int, head_dim: int) -> Rope:
    # the logarithm of it divides
    original = config.size("original_max_position_embeddings", _CONTEXT_TOKENS, least=2)
    return read_rope(config, context_tokens, head_dim, original_tokens=original, in_part=True)


def _read_gguf(config: GgufConfig, family: str) -> ModelSpec:
    tensors = config.file.tensors
    if _LONG not in tensors:
        return read_gguf_spec(config, family, rotates_in_part=True)
    magnitude = config.number("rope.scaling.attn_factor", 1.0)
    original = config.size("rope.scaling.original_context_length")
    spec = read_gguf_spec(config, family, rotates_in_part=True)
    pairs = spec.rotary_dims // 2
    return replace(
        spec,
        rope=replace(
            spec.rope,
            scaling=RopeScaling.LONGROPE,
            original_context_tokens=original,
            magnitude=magnitude,
            short_divisors=_divisors(config, _SHORT, pairs),
            long_divisors=_divisors(config, _LONG, pairs),
        ),
    )


def _divisors(config: GgufConfig, stored: str, pairs: int) -> tuple[float, ...]:
    """One for each pair of a head that is rotated. Raises ConfigError."""
    divisors = torch.from_numpy(config.file.load(stored))
    whole = bool((divisors.isfinite() & (divisors > 0)).all())
    if divisors.shape != (pairs,) or not whole:
        raise ConfigError(
            f"{config.file.path}: tensor {stored} is not supported: {pairs} numbers above 0 are "
            "expected"
        )
    return tuple(divisors.tolist())


PHI3 = Architecture(
    family="phi3",
    hf_name="Phi3ForCausalLM",
    gguf_name="phi3",
    read_config=_read,
    read_gguf=_read_gguf,
    hf_tensors=replace(HF_NAMES, fused={"self_attn.qkv_proj": _QKV, "mlp.gate_up_proj": _GATE_UP}),
    gguf_tensors=replace(
        GGUF_NAMES,
        fused={"attn_qkv": _QKV, "ffn_up": _GATE_UP},
        computed=re.compile(r"rope_factors_(long|short)\.weight"),  # of the configuration
    ),
    ignored_config_keys={
        "auto_map": IgnoredKey("transformers has this architecture itself"),
        "lm_head_bias": IgnoredKey("heads have no bias here", only=(False,)),
        "full_attn_mod": IgnoredKey("every layer attends in the same way", only=(1,)),
        "interpolate_factor": IgnoredKey("positions are not interpolated", only=(1,)),
        "embd_layer": IgnoredKey("it describes the file, not the model"),
    },
)
