"""Small models on disk in the formats that are loaded, and the settings of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from service.device.models.tensors import GGUF_NAMES, tensor_shape
from service.device.spec import DUMMY_SHAPES, ModelSpec

TINY = DUMMY_SHAPES["tiny"]

SIZES: dict[str, Any] = {
    "hidden_size": TINY.hidden,
    "intermediate_size": TINY.ffn,
    "num_attention_heads": TINY.heads,
    "num_key_value_heads": TINY.kv_heads,
    "head_dim": TINY.head_dim,
    "num_hidden_layers": TINY.layers,
    "vocab_size": TINY.vocab,
    "tie_word_embeddings": True,
}

# config.json of published checkpoints, with the sizes left out
PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2-135M-Instruct": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.041667,
        "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
        "model_type": "llama", "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
        "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": True,
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
    },
    "Llama-3.2-1B-Instruct": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [1, 2], "hidden_act": "silu",
        "initializer_range": 0.02, "max_position_embeddings": 131072, "mlp_bias": False,
        "model_type": "llama", "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0",
        "use_cache": True,
    },
    "Mistral-7B-Instruct-v0.2": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 32768, "model_type": "mistral", "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "sliding_window": None, "torch_dtype": "bfloat16",
        "transformers_version": "4.36.0", "use_cache": True,
    },
    "Qwen2.5-0.5B-Instruct": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2",
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": True,
        "use_mrope": False, "use_sliding_window": False,
    },
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True,
        "use_sliding_window": False,
    },
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
        "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": 32, "norm_topk_prob": True,
        "num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": False,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "sliding_window": None, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    },
    "gemma-3-1b-it": {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid",
        "eos_token_id": [1, 106], "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02,
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "pad_token_id": 0,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0", "use_cache": True,
    },
    "phi-4": {
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 2, "hidden_act": "silu",
        "initializer_range": 0.02, "max_position_embeddings": 16384, "model_type": "phi3",
        "original_max_position_embeddings": 16384, "pad_token_id": 100349, "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 250000, "sliding_window": None,
        "torch_dtype": "bfloat16", "transformers_version": "4.47.0", "use_cache": True,
    },
    "Phi-4-mini-instruct": {
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 199999,
        "embd_pdrop": 0.0, "eos_token_id": 2, "full_attn_mod": 1, "hidden_act": "silu",
        "initializer_range": 0.02, "interpolate_factor": 1, "lm_head_bias": False,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "phi3",
        "original_max_position_embeddings": 4096, "pad_token_id": 199999,
        "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": [1.0, 1.1, 1.6, 5.0, 20.0, 45.0],
            "short_factor": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "type": "longrope",
        },
        "rope_theta": 10000.0, "sliding_window": 262144, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0", "use_cache": True,
    },
    "OLMo-2-1124-7B-Instruct": {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 4096, "model_type": "olmo2", "pad_token_id": 100277,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
        "torch_dtype": "bfloat16", "transformers_version": "4.47.0.dev0", "use_cache": False,
    },
    "granite-3.3-2b-instruct": {
        "architectures": ["GraniteForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "attention_multiplier": 0.015625, "bos_token_id": 0,
        "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu",
        "initializer_range": 0.02, "logits_scaling": 8.0, "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "granite", "pad_token_id": 0, "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000000.0,
        "torch_dtype": "bfloat16", "transformers_version": "4.49.0", "use_cache": True,
    },
}  # fmt: skip

PUBLISHED_GENERATION: list[dict[str, Any]] = [
    {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
     "transformers_version": "4.42.3"},
    {"bos_token_id": 128000, "do_sample": True, "eos_token_id": [1, 2], "temperature": 0.6,
     "top_p": 0.9, "transformers_version": "4.45.0.dev0"},
    {"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True, "eos_token_id": [1, 2],
     "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
     "transformers_version": "4.37.0"},
]  # fmt: skip


def tiny_tensors(spec: ModelSpec = TINY) -> dict[str, torch.Tensor]:
    """Those of a model with tied embeddings."""
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        names += [f"{prefix}.self_attn.{part}_proj.weight" for part in "qkvo"]
        if spec.qkv_bias:
            names += [f"{prefix}.self_attn.{part}_proj.bias" for part in "qkv"]
        names += [f"{prefix}.mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
        names += [f"{prefix}.input_layernorm.weight", f"{prefix}.post_attention_layernorm.weight"]
    return {name: torch.full(tensor_shape(spec, name), 0.01) for name in names}


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tiny_folder(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **keys: Any) -> Path:
    """A whole Llama folder without a tokenizer; `keys` are of its config.json."""
    folder.mkdir(exist_ok=True)
    save_file(tiny_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return write_config(folder, {"architectures": ["LlamaForCausalLM"], **SIZES, **keys})


def tiny_gguf(
    path: Path,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
    tokens: int = TINY.vocab,
    unused: int = 0,
    eos: int | None = None,
) -> Path:
    """A whole GGUF file with as many tokens, the last `unused` of them marked so."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(TINY.layers)
    writer.add_context_length(TINY.context_tokens)
    writer.add_embedding_length(TINY.hidden)
    writer.add_feed_forward_length(TINY.ffn)
    writer.add_head_count(TINY.heads)
    writer.add_head_count_kv(TINY.kv_heads)
    writer.add_layer_norm_rms_eps(TINY.norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{number}" for number in range(tokens)])
    writer.add_token_types([1] * (tokens - unused) + [5] * unused)
    writer.add_token_merges([])
    if eos is not None:
        writer.add_eos_token_id(eos)
    for key, value in (metadata or {}).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case list():
                writer.add_array(key, value)
            case _:
                writer.add_string(key, value)
    stored = {GGUF_NAMES.stored(name): tensor for name, tensor in tiny_tensors().items()}
    for name, tensor in {**stored, **(tensors or {})}.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokenizer(folder: Path, added: list[str], settings: dict[str, Any] | None = None) -> Path:
    """Two letters, then as many special tokens."""
    folder.mkdir(exist_ok=True)
    backend = Backend(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(added)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings or {}))
    return folder
