"""The operations between the matrix products of a layer, in plain torch; `service.device.triton`
has them as fused kernels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from service.device.cache.kv_cache import KvCache
from service.device.rope import rotate
from service.device.spec import ModelSpec


class LayerOps(Protocol):
    """Shapes: hidden, delta [tokens, hidden]; qkv [tokens, heads + 2 * kv_heads, head_dim]."""

    def norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        """The norm of `hidden`, to which `delta` is added in place before."""
        ...

    def rope_and_write_kv(
        self,
        layer: int,
        qkv: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        cache: KvCache,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        """Rotate queries and keys, norm them before where there are `norms` (weights of queries and
        of keys), and write keys and values to the layer's pages at `slot_mapping` int64 [tokens].
        Gives queries [tokens, heads, head_dim]. `angles` are cosines and sines
        [tokens, 1, head_dim / 2]."""
        ...

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of [tokens, 2 * width]."""
        ...


class PlainOps:
    """Implements `LayerOps` on any device, one torch operation after the other."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        if delta is not None:
            hidden += delta
        return functional.rms_norm(hidden, (hidden.shape[-1],), weight, self._spec.norm_eps)

    def rope_and_write_kv(
        self,
        layer: int,
        qkv: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        cache: KvCache,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        spec = self._spec
        rotated_heads = spec.heads + spec.kv_heads
        if norms is None:
            rotated = rotate(qkv[:, :rotated_heads], *angles)
            query, key = rotated[:, : spec.heads], rotated[:, spec.heads :]
        else:
            query = rotate(self.norm(qkv[:, : spec.heads], None, norms[0]), *angles)
            key = rotate(self.norm(qkv[:, spec.heads : rotated_heads], None, norms[1]), *angles)
        cache.write(layer, key, qkv[:, rotated_heads:], slot_mapping)
        return query

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up
