"""The operations between the matrix products of a layer, in plain torch; `service.device.triton`
has them as fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

import torch
from torch.nn import functional

from service.device.cache.kv_cache import KvCache
from service.device.rope import rotate
from service.device.spec import Gate, ModelSpec


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
        [tokens, 1, rotary_dims / 2]."""
        ...

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """act(gate) * up of [tokens, 2 * width]."""
        ...


class PlainOps:
    """Implements `LayerOps` on any device, one torch operation after the other."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._gated = gated_by(spec.gate)

    def norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        if delta is not None:
            hidden += delta
        width, eps = (hidden.shape[-1],), self._spec.norm_eps
        if weight.dtype is hidden.dtype:
            return functional.rms_norm(hidden, width, weight, eps)
        return functional.rms_norm(hidden.float(), width, weight.float(), eps).to(hidden.dtype)

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
            query = rotate(self._head_norm(qkv[:, : spec.heads], norms[0]), *angles)
            key = rotate(self._head_norm(qkv[:, spec.heads : rotated_heads], norms[1]), *angles)
        cache.write(layer, key, qkv[:, rotated_heads:], slot_mapping)
        return query

    def _head_norm(self, heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Of each head of [tokens, heads, head_dim], or of all of them together."""
        if not self._spec.wide_qk_norm:
            return self.norm(heads, None, weight)
        return self.norm(heads.flatten(1), None, weight).view(heads.shape)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._gated(gate_up)


def gated_by(gate: Gate) -> Callable[[torch.Tensor], torch.Tensor]:
    """act(gate) * up of [tokens, 2 * width]."""
    match gate:
        case Gate.SILU:
            return _silu
        case Gate.GELU:
            return _gelu
        case _:
            assert_never(gate)


def _silu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _gelu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up
