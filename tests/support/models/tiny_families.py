"""Tiny models of each family that transformers knows: the reference that ours is compared with.

Contexts are short, so that a few dozen tokens leave windows and original contexts behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

COMMON: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
PADDED = {**COMMON, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.8,
    "logits_scaling": 4.0,
}
GEMMA3 = {
    "head_dim": 16,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 11,
}
LOCAL_QWEN2 = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}

FAMILIES: dict[str, tuple[type[Any], Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**COMMON)),
    "llama-tied": (LlamaForCausalLM, LlamaConfig(**{**COMMON, "tie_word_embeddings": True})),
    "llama-rope3": (LlamaForCausalLM, LlamaConfig(**COMMON, rope_parameters=LLAMA3_ROPE)),
    "llama-linear": (LlamaForCausalLM, LlamaConfig(**COMMON, rope_parameters=LINEAR_ROPE)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**COMMON)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=16)),
    "mistral": (MistralForCausalLM, MistralConfig(**COMMON, head_dim=8, sliding_window=None)),
}
NEW_FAMILIES: dict[str, tuple[type[Any], Any]] = {
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**{**PADDED, "tie_word_embeddings": True}, **GEMMA3),
    ),
    "gemma3-capped": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**PADDED, **GEMMA3, final_logit_softcapping=5.0),
    ),
    "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**COMMON, head_dim=16, **EXPERTS)),
    "phi3": (Phi3ForCausalLM, Phi3Config(**PADDED)),
    "phi3-long": (
        Phi3ForCausalLM,
        Phi3Config(
            **{**PADDED, "hidden_size": 96},
            original_max_position_embeddings=32,
            rope_parameters=LONG_ROPE,
        ),
    ),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**PADDED)),
    "granite": (GraniteForCausalLM, GraniteConfig(**PADDED, **GRANITE)),
    "mistral-window": (MistralForCausalLM, MistralConfig(**COMMON, head_dim=8, sliding_window=17)),
    "qwen2-window": (Qwen2ForCausalLM, Qwen2Config(**COMMON, **LOCAL_QWEN2)),
    "qwen3-yarn": (
        Qwen3ForCausalLM,
        Qwen3Config(**COMMON, head_dim=16, rope_parameters=YARN_ROPE),
    ),
}
# with what llama.cpp's files do not state: six layers of which one sees everything
GEMMA3_GGUF = {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16}
GGUF_FAMILIES: dict[str, tuple[type[Any], Any]] = {
    "gemma3-gguf": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **{**PADDED, "tie_word_embeddings": True, "num_hidden_layers": 6}, **GEMMA3_GGUF
        ),
    ),
}
ALL_FAMILIES = {**FAMILIES, **NEW_FAMILIES, **GGUF_FAMILIES}


def random_reference(name: str, folder: Path) -> Any:
    """transformers' model with random weights, which are saved in `folder`."""
    model = random_model(name)
    model.save_pretrained(folder)
    return model


def random_model(name: str) -> Any:
    """The same, nowhere saved."""
    transformers.logging.set_verbosity_error()
    build, config = ALL_FAMILIES[name]
    torch.manual_seed(5)
    model = build(config).eval()
    norms_from_one = build is Gemma3ForCausalLM
    with torch.no_grad():
        for name_of, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.15)
            if "norm" in name_of and not norms_from_one:
                parameter.add_(1.0)  # so that queries and keys decide what is seen
    return model
