"""Qwen3's mixtures of experts: Qwen3's attention, and in every layer a mixture instead of one
feed-forward network.

Files have a matrix for each expert, or, as transformers holds them, gate and up of all experts in
one tensor and down in another. A sliding window that is switched on is in every layer.
"""

from __future__ import annotations

from dataclasses import replace

from service.device.models.architecture import Architecture
from service.device.models.config_reader import (
    ConfigKeys,
    layer_windows,
    read_spec,
    window_if_used,
)
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.models.tensors import GGUF_NAMES, HF_NAMES, ROUTER
from service.device.spec import Experts, ModelSpec
from service.model_files.strict_keys import IgnoredKey, StrictKeys

_KEYS = ConfigKeys(ffn="moe_intermediate_size")
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_PARTS = {**HF_NAMES.parts, ROUTER: "mlp.gate"}
_EACH = replace(
    HF_NAMES,
    parts={**_PARTS, **{f"mlp.experts.{one}": f"mlp.experts.{{}}.{one}" for one in _PROJECTIONS}},
)
_TOGETHER = replace(
    HF_NAMES,
    parts={**_PARTS, "mlp.experts.down_proj": "mlp.experts.down_proj"},
    fused={"mlp.experts.gate_up_proj": ("mlp.experts.gate_proj", "mlp.experts.up_proj")},
    bare=frozenset({"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}),
)
_GGUF = replace(
    GGUF_NAMES,
    parts={
        **GGUF_NAMES.parts,
        ROUTER: "ffn_gate_inp",
        "mlp.experts.gate_proj": "ffn_gate_exps",
        "mlp.experts.up_proj": "ffn_up_exps",
        "mlp.experts.down_proj": "ffn_down_exps",
    },
)


def _windows(config: StrictKeys, layers: int) -> tuple[int | None, ...]:
    config.take("max_window_layers")  # transformers does not obey it here
    return layer_windows(config, layers, window_if_used(config), lambda layer: True)


def _read(config: StrictKeys, family: str) -> ModelSpec:
    spec = read_spec(config, family, keys=_KEYS, qk_norm=True, windows=_windows)
    count = config.integer("num_experts", config.take("num_local_experts"))
    used = config.integer("num_experts_per_tok")
    if not 1 <= used <= count:
        raise config.refused("num_experts_per_tok", used, f"there are {count} experts")
    normalised = config.flag("norm_topk_prob")
    return replace(spec, experts=Experts(count=count, used=used, normalised=normalised))


def _read_gguf(config: GgufConfig, family: str) -> ModelSpec:
    """llama.cpp always weighs those that are used so that the sum is one."""
    count, used = config.integer("expert_count"), config.integer("expert_used_count")
    if not 1 <= used <= count:
        raise config.refused("expert_used_count", used, f"there are {count} experts")
    spec = read_gguf_spec(config, family, ffn_key="expert_feed_forward_length")
    return replace(spec, experts=Experts(count=count, used=used, normalised=True))


QWEN3_MOE = Architecture(
    family="qwen3-moe",
    hf_name="Qwen3MoeForCausalLM",
    gguf_name="qwen3moe",
    read_config=_read,
    read_gguf=_read_gguf,
    hf_tensors=_EACH,
    hf_other_tensors=(_TOGETHER,),
    gguf_tensors=_GGUF,
    ignored_config_keys={
        "intermediate_size": IgnoredKey("no layer has a single feed-forward network"),
        "decoder_sparse_step": IgnoredKey("every layer is a mixture here", only=(1,)),
        "mlp_only_layers": IgnoredKey("every layer is a mixture here", only=([],)),
        "output_router_logits": IgnoredKey("it is about what transformers returns"),
        "router_aux_loss_coef": IgnoredKey("it is of training"),
    },
    ignored_gguf_keys={
        "qwen3moe.feed_forward_length": IgnoredKey("no layer has a single feed-forward network"),
        "qwen3moe.expert_shared_count": IgnoredKey("no expert is shared here", only=(0,)),
        "qwen3moe.expert_weights_norm": IgnoredKey("weights sum to one here", only=(True,)),
        "qwen3moe.expert_weights_scale": IgnoredKey("weights sum to one here", only=(1.0,)),
        "qwen3moe.expert_gating_func": IgnoredKey("the router is a softmax here", only=(1,)),
    },
)
