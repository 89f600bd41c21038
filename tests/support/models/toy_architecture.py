"""A family that phasescope does not know, stated in one module as a real one would be.

Its computation is that of Qwen3; its names of keys and tensors are its own.
"""

from __future__ import annotations

from functools import partial

from service.device.models.architecture import Architecture
from service.device.models.config_reader import ConfigKeys, read_spec
from service.device.models.tensors import TensorNames
from service.model_files.strict_keys import IgnoredKey

KEYS = ConfigKeys(
    layers="n_layers",
    hidden="d_model",
    heads="n_heads",
    kv_heads="n_kv_heads",
    head_dim="d_head",
    ffn="d_ff",
    vocab="n_vocab",
    context_tokens="n_ctx",
    norm_eps="eps",
    tied_embeddings="tied",
)
TOY = Architecture(
    family="toy",
    hf_name="ToyForCausalLM",
    gguf_name="toy",
    read_config=partial(read_spec, keys=KEYS, qk_norm=True),
    hf_tensors=TensorNames(
        embedding="tokens",
        norm="last_norm",
        head="unembed",
        layer="blocks.{}",
        parts={
            "input_layernorm": "attention.norm",
            "self_attn.q_proj": "attention.query",
            "self_attn.k_proj": "attention.key",
            "self_attn.v_proj": "attention.value",
            "self_attn.o_proj": "attention.out",
            "self_attn.q_norm": "attention.query_norm",
            "self_attn.k_norm": "attention.key_norm",
            "post_attention_layernorm": "network.norm",
            "mlp.gate_proj": "network.gate",
            "mlp.up_proj": "network.up",
            "mlp.down_proj": "network.down",
        },
    ),
    gguf_interleaves_rope=True,
    ignored_config_keys={"toy_version": IgnoredKey("it describes the file, not the model")},
)
