"""Adapters on a GPU: a table of addresses and ranks, so that one launch multiplies rows of any
adapters, and a captured graph needs no more than a place in the table for each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from service.device.inputs import AdapterRows
from service.device.lora.torch_adapters import CapturedAdapters, StepAdapters
from service.device.lora.weights import AdapterWeights, LowRank, Module, module_parts
from service.device.pinned import on_device
from service.device.spec import ModelSpec
from service.device.triton.lora import TILE_ROWS, ModuleTable, Tiles, add_low_rank
from service.engine.executor import DeviceFailure
from telemetry.facts.reasons import StepFailure

MOST_PLACED = 256
NO_PLACE = 0  # in the table: of rows without an adapter


class TritonAdapters:
    """Implements `DecoderAdapters` and `CapturedAdapters`."""

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, most_rank: int
    ) -> None:
        """No adapter of a larger rank than `most_rank` is placed."""
        self._dtype, self._device = dtype, device
        self._most_rank = most_rank
        self._parts = {module: module_parts(spec, module) for module in Module}
        shape = (spec.layers, len(Module), MOST_PLACED + 1)
        self._addresses = torch.zeros((*shape, 3), dtype=torch.int64, device=device)
        self._ranks = torch.zeros(shape, dtype=torch.int32, device=device)
        self._placed: dict[int, _Placed] = {}

    def place(self, number: int, weights: AdapterWeights) -> int:
        taken = {one.place for one in self._placed.values()}
        free = [place for place in range(1, MOST_PLACED + 1) if place not in taken]
        if not free:
            raise _no_room(f"{MOST_PLACED} adapters are placed, and the table holds no more")
        if weights.rank > self._most_rank:
            raise _no_room(f"its rank is {weights.rank}, at most {self._most_rank} is computed")
        layers = tuple(
            {module: self._moved(low) for module, low in modules.items()}
            for modules in weights.layers
        )
        addresses = torch.zeros((*self._addresses.shape[:2], 3), dtype=torch.int64)
        ranks = torch.zeros(self._ranks.shape[:2], dtype=torch.int32)
        for layer, module, low in _each(layers):
            parts = (low.down, low.up, low.scales)
            addresses[layer, module] = torch.tensor([one.data_ptr() for one in parts])
            ranks[layer, module] = low.rank
        self._addresses[:, :, free[0]] = addresses.to(self._device)
        self._ranks[:, :, free[0]] = ranks.to(self._device)
        self._placed[number] = _Placed(free[0], layers)
        return self._bytes()

    def drop(self, number: int) -> int:
        """Its memory is used again behind all that was launched before."""
        place = self._placed.pop(number).place
        self._ranks[:, :, place] = 0
        return self._bytes()

    @property
    def captured(self) -> CapturedAdapters:
        return self

    def place_of(self, number: int) -> int:
        return self._placed[number].place if number else NO_PLACE

    def of_step(self, segments: tuple[AdapterRows, ...]) -> StepAdapters | None:
        if not segments:
            return None
        tiles = [
            (self.place_of(one.adapter), one.begin + first, min(TILE_ROWS, one.tokens - first))
            for one in segments
            for first in range(0, one.tokens, TILE_ROWS)
        ]
        places, firsts, counts = (
            on_device(list(column), torch.int32, self._device)
            for column in zip(*tiles, strict=True)
        )
        return self._step(Tiles(places, firsts, counts, max(count for _, _, count in tiles)))

    def of_rows(self, places: torch.Tensor) -> StepAdapters:
        firsts = torch.arange(len(places), dtype=torch.int32, device=self._device)
        return self._step(Tiles(places, firsts, torch.ones_like(firsts), 1))

    def _step(self, tiles: Tiles) -> StepAdapters:
        return _Tiled(self._parts, self._addresses, self._ranks, tiles, self._most_rank)

    def _moved(self, low: LowRank) -> LowRank:
        down, up = (one.to(self._device, self._dtype) for one in (low.down, low.up))
        return LowRank(down.contiguous(), up.contiguous(), low.scales.to(self._device))

    def _bytes(self) -> int:
        placed = self._placed.values()
        return sum(low.bytes for one in placed for _, _, low in _each(one.layers))


@dataclass(frozen=True, slots=True)
class _Placed:
    """Keeps the tensors whose addresses the table has at `place`."""

    place: int
    layers: tuple[Mapping[Module, LowRank], ...]


@dataclass(frozen=True, slots=True)
class _Tiled:
    """Implements `StepAdapters`."""

    parts: Mapping[Module, tuple[int, ...]]
    addresses: torch.Tensor
    ranks: torch.Tensor
    tiles: Tiles
    most_rank: int

    def add(self, layer: int, module: Module, x: torch.Tensor, out: torch.Tensor) -> None:
        table = ModuleTable(
            self.addresses[layer, module], self.ranks[layer, module], self.parts[module]
        )
        add_low_rank(x, out, table, self.tiles, self.most_rank)


def _each(
    layers: tuple[Mapping[Module, LowRank], ...],
) -> Iterator[tuple[int, Module, LowRank]]:
    for layer, modules in enumerate(layers):
        for module, low in modules.items():
            yield layer, module, low


def _no_room(message: str) -> DeviceFailure:
    failure = DeviceFailure(message)
    failure.kind = StepFailure.OUT_OF_MEMORY
    return failure
