"""Adapters in torch, on any device: the products of a step, one segment after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from service.device.inputs import AdapterRows
from service.device.lora.store import AdapterStore
from service.device.lora.weights import AdapterWeights, LowRank, Module, module_parts
from service.device.quantization.linear import Product
from service.device.spec import ModelSpec

Layers = tuple[Mapping[Module, LowRank], ...]


class StepAdapters(Protocol):
    """Those of one step's rows."""

    def add(self, layer: int, module: Module, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to `out` [tokens, out], in place, what the adapters make of x [tokens, in]."""
        ...


class CapturedAdapters(Protocol):
    """What a captured graph needs: a table on the device that is read whenever it runs."""

    def place_of(self, number: int) -> int:
        """Where the table has an adapter; 0 for number 0, which is none."""
        ...

    def of_rows(self, places: torch.Tensor) -> StepAdapters:
        """One row each with the adapter in `places` int32 [rows], which may change until the
        products are computed."""
        ...


class DecoderAdapters(AdapterStore, Protocol):
    """What torch's decoder needs of a store."""

    @property
    def captured(self) -> CapturedAdapters | None:
        """None where steps with adapters cannot be captured in a graph."""
        ...

    def of_step(self, segments: tuple[AdapterRows, ...]) -> StepAdapters | None:
        """None where no row has one."""
        ...


@dataclass(frozen=True, slots=True)
class LayerProducts:
    """How a layer multiplies: with what a step's adapters add, if it has any."""

    adapters: StepAdapters | None
    layer: int

    def __call__(self, module: Module, product: Product, x: torch.Tensor) -> torch.Tensor:
        """[tokens, out] of x [tokens, in]."""
        out = product(x)
        if self.adapters is not None:
            self.adapters.add(self.layer, module, x, out)
        return out


class TorchAdapters:
    """Implements `DecoderAdapters` in `dtype`, that of the decoder's activations."""

    captured = None

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._parts = {module: list(module_parts(spec, module)) for module in Module}
        self._placed: dict[int, Layers] = {}

    def place(self, number: int, weights: AdapterWeights) -> int:
        self._placed[number] = tuple(
            {module: self._moved(low) for module, low in modules.items()}
            for modules in weights.layers
        )
        return self._bytes()

    def drop(self, number: int) -> int:
        del self._placed[number]
        return self._bytes()

    def of_step(self, segments: tuple[AdapterRows, ...]) -> StepAdapters | None:
        if not segments:
            return None
        found = [(self._placed[one.adapter], one) for one in segments]
        return _Segments(self._parts, found)

    def _moved(self, low: LowRank) -> LowRank:
        down, up = (one.to(self._device, self._dtype) for one in (low.down, low.up))
        return LowRank(down, up, low.scales.to(self._device))

    def _bytes(self) -> int:
        return sum(
            low.bytes
            for layers in self._placed.values()
            for modules in layers
            for low in modules.values()
        )


@dataclass(frozen=True, slots=True)
class _Segments:
    """Implements `StepAdapters`. `parts` are the outputs of each part of a module."""

    parts: Mapping[Module, list[int]]
    segments: list[tuple[Layers, AdapterRows]]

    def add(self, layer: int, module: Module, x: torch.Tensor, out: torch.Tensor) -> None:
        sizes = self.parts[module]
        for layers, rows in self.segments:
            low = layers[layer].get(module)
            if low is None:
                continue
            place = slice(rows.begin, rows.begin + rows.tokens)
            middle = ((x[place] @ low.down.t()) * low.scales).to(x.dtype)
            pieces = zip(
                torch.split(out[place], sizes, dim=1),
                torch.split(middle, low.rank, dim=1),
                torch.split(low.up, sizes),
                strict=True,
            )
            for to, inner, up in pieces:
                to.addmm_(inner, up.t())
