"""A LoRA adapter in memory, as a back end takes it: for matrices of the base model, a low-rank
matrix each.

y = W x becomes y = W x + B (s * (A x)). Matrices that the decoder has fused (query, key and value;
gate and up) are fused here too: their A lie one below the other, and each part's outputs have a B.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import torch

from service.device.spec import ModelSpec

_DIGEST_BYTES = 16


class Module(IntEnum):
    """A product of a layer that adapters may change."""

    QKV = 0
    OUT = 1
    GATE_UP = 2
    DOWN = 3


def module_parts(spec: ModelSpec, module: Module) -> tuple[int, ...]:
    """Outputs of each part of the module's matrix."""
    return {
        Module.QKV: (spec.q_size, spec.kv_size, spec.kv_size),
        Module.OUT: (spec.hidden,),
        Module.GATE_UP: (spec.ffn, spec.ffn),
        Module.DOWN: (spec.hidden,),
    }[module]


def module_inputs(spec: ModelSpec, module: Module) -> int:
    """Inputs of the module's matrix."""
    return {Module.OUT: spec.q_size, Module.DOWN: spec.ffn}.get(module, spec.hidden)


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one module of one layer.

    `down` [parts * rank, in] and `up` [out, rank] are contiguous and of the adapter's dtype;
    `scales` float32 [parts * rank]. Outputs of part p are `up` rows times
    `scales * (down x)` [p * rank, (p + 1) * rank). A part that the adapter does not have is zero.
    """

    down: torch.Tensor
    up: torch.Tensor
    scales: torch.Tensor

    @property
    def rank(self) -> int:
        return self.up.shape[1]

    @property
    def bytes(self) -> int:
        return sum(one.numel() * one.itemsize for one in (self.down, self.up, self.scales))


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """One adapter. `layers[i]` has the modules of layer i that it changes; `modules` are the names
    that its configuration targets, sorted. Implements `service.engine.executor.Adapter`."""

    dtype: torch.dtype
    layers: tuple[Mapping[Module, LowRank], ...]
    modules: tuple[str, ...]

    @property
    def rank(self) -> int:
        return max((one.rank for layer in self.layers for one in layer.values()), default=0)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for layer in self.layers for one in layer.values())

    @property
    def digest(self) -> str:
        """Computed at each call, in about a second a gigabyte."""
        found = hashlib.blake2b(str(self.dtype).encode(), digest_size=_DIGEST_BYTES)
        for index, layer in enumerate(self.layers):
            for module, one in sorted(layer.items()):
                for tensor in (one.down, one.up, one.scales):
                    found.update(f"{index} {module} {list(tensor.shape)}".encode())
                    found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()
