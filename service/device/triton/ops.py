"""The fused kernels as the decoder wants them."""

from __future__ import annotations

import torch

from service.device.cache.kv_cache import KvCache
from service.device.spec import ModelSpec
from service.device.triton.attention import Heads
from service.device.triton.fused import gated, norm_of_sum, rope_and_write_kv


class FusedOps:
    """Implements `LayerOps` with one kernel for each."""

    def __init__(self, spec: ModelSpec) -> None:
        self._shape = Heads(spec.heads, spec.kv_heads, spec.head_dim)
        self._eps = spec.norm_eps

    def norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        return norm_of_sum(hidden, delta, weight, self._eps)

    def rope_and_write_kv(
        self,
        layer: int,
        qkv: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        cache: KvCache,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        keys, values = cache.kv_tensors(layer)
        cos, sin = angles
        return rope_and_write_kv(
            qkv, keys, values, cos, sin, slot_mapping, self._shape, norms, self._eps
        )

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        return gated(gate_up)
