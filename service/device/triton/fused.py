"""Launches the fused kernels over tensors."""

from __future__ import annotations

import torch

from service.device.cache.kv_cache import KvTensor
from service.device.kernels.fused_kernels import add_norm, gate, rope_and_write_kv_kernel
from service.device.kernels.sizes import power_of_2
from service.device.quantization.rows import LARGEST_VALUE
from service.device.triton.attention import Heads

_GATE_BLOCK = 1024


def norm_of_sum(
    hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """The norm of `hidden` [tokens, width], to which `delta` is added in place before."""
    out = torch.empty_like(hidden)
    tokens, width = hidden.shape
    if not tokens:  # a chunk in the midst of a prompt wants no logits
        return out
    add_norm[(tokens,)](
        hidden, delta, weight, out, eps, width,
        ADDS=delta is not None, BLOCK=power_of_2(width),
    )  # fmt: skip
    return out


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [tokens, 2 * width]."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((tokens, width))
    block = min(_GATE_BLOCK, power_of_2(width))
    gate[(tokens, -(-width // block))](gate_up, out, width, BLOCK=block)
    return out


def rope_and_write_kv(
    qkv: torch.Tensor,
    keys: KvTensor,
    values: KvTensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    shape: Heads,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Queries [tokens, heads, head_dim] of qkv [tokens, heads + 2 * kv_heads, head_dim], rotated
    by cos and sin [tokens, head_dim / 2]; keys and values are written at `slot_mapping` int64
    [tokens].
    `norms` are weights [head_dim] of queries and keys."""
    tokens, half = qkv.shape[0], shape.head_dim // 2
    query = qkv.new_empty((tokens, shape.heads, shape.head_dim))
    q_norm, k_norm = norms or (None, None)
    most = LARGEST_VALUE[keys.data.dtype] if keys.scales is not None else 0.0
    rope_and_write_kv_kernel[(tokens, shape.heads + 2 * shape.kv_heads)](
        qkv, query, keys.data, values.data, keys.scales, values.scales, cos, sin, slot_mapping,
        q_norm, k_norm, eps,
        HEADS=shape.heads, KV_HEADS=shape.kv_heads, HALF=half,
        BLOCK=power_of_2(half), NORMS=norms is not None, MOST=most,
    )  # fmt: skip
    return query
