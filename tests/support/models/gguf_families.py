"""Tiny models of transformers as GGUF files, as llama.cpp's converter writes them: its names come
from the gguf package, what it does to tensors and which keys it writes is stated here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import torch

# those of `tiny_families` that llama.cpp has
GGUF_ARCHITECTURES = {
    "gemma3-gguf": gguf.MODEL_ARCH.GEMMA3,
    "qwen3-moe": gguf.MODEL_ARCH.QWEN3MOE,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "phi3-long": gguf.MODEL_ARCH.PHI3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "qwen3-yarn": gguf.MODEL_ARCH.QWEN3,
}


def write_family(path: Path, model: Any, arch: gguf.MODEL_ARCH) -> Path:
    """`model` with its weights."""
    config = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    _KEYS.get(arch, _plain_keys)(writer, config)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for stem, tensor in _stored(model, arch):
        name = names.get_name(stem)
        assert name is not None, stem
        writer.add_tensor(f"{name}.weight", tensor.float().contiguous().numpy())
    for stem, values in _divisors(config).items():
        writer.add_tensor(f"{stem}.weight", torch.tensor(values).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _plain_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _granite_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    _plain_keys(writer, config)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _gemma3_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    """Neither the scale of attention nor the local rope: readers know them."""
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _phi3_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    original = config.original_max_position_embeddings
    head_dim = config.hidden_size // config.num_attention_heads
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * head_dim))
    writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] == "longrope":
        factor = torch.tensor(config.max_position_embeddings / original).log()
        grown = 1 + factor / torch.tensor(float(original)).log()
        writer.add_rope_scaling_attn_factors(float(grown.sqrt()))


def _experts_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    _plain_keys(writer, config)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


_KEYS: dict[gguf.MODEL_ARCH, Callable[[gguf.GGUFWriter, Any], None]] = {
    gguf.MODEL_ARCH.GRANITE: _granite_keys,
    gguf.MODEL_ARCH.GEMMA3: _gemma3_keys,
    gguf.MODEL_ARCH.PHI3: _phi3_keys,
    gguf.MODEL_ARCH.QWEN3MOE: _experts_keys,
}


def _divisors(config: Any) -> dict[str, list[float]]:
    rope = config.rope_parameters
    if rope.get("rope_type") != "longrope":
        return {}
    return {"rope_factors_long": rope["long_factor"], "rope_factors_short": rope["short_factor"]}


def _stored(model: Any, arch: gguf.MODEL_ARCH) -> Iterator[tuple[str, torch.Tensor]]:
    """Names without `.weight`, and tensors as they are stored."""
    config = model.config
    for name, tensor in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem == "lm_head" and config.tie_word_embeddings:
            continue
        if stem.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            yield stem.replace("gate_up", "gate"), gate
            yield stem.replace("gate_up", "up"), up
        elif arch is gguf.MODEL_ARCH.GEMMA3 and stem.endswith("norm"):
            yield stem, tensor + 1
        elif arch is gguf.MODEL_ARCH.GRANITE and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads
            heads = heads if stem.endswith("q_proj") else config.num_key_value_heads
            halves = tensor.view(heads, 2, -1, tensor.shape[1])
            yield stem, halves.transpose(1, 2).reshape(tensor.shape)
        else:
            yield stem, tensor
