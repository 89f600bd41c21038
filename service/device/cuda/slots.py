"""What the device keeps of each slot, so that a decode step needs almost nothing from the host:
the last token, the block table of the sequence, and where its LoRA adapter is.

One more slot is for padding: its pages are one page that no sequence has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from service.device.cuda.runtime import Runtime
from service.device.pinned import on_device
from service.engine.plan import DecodeRow, PrefillChunk

Row = DecodeRow | PrefillChunk


class DeviceSlots:
    """`last_tokens` int64 [slots + 1], `table` int32 [slots + 1, pages], `places` int32 [slots + 1]
    in the table of adapters, 0 for none; `padding` is the last slot."""

    def __init__(self, runtime: Runtime, slots: int, pages_each: int, spare_page: int) -> None:
        device = runtime.device
        self.padding = slots
        self.last_tokens = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.table = torch.zeros((slots + 1, pages_each), dtype=torch.int32, device=device)
        self.table[slots] = spare_page
        self.places = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._known_places = [0] * slots
        self._known_pages = [0] * slots
        self._runtime = runtime
        self._width = pages_each

    def reset(self, slot: int) -> None:
        """The slot's sequence has ended, or another one takes it."""
        self._known_pages[slot] = 0

    def set_places(self, places: Mapping[int, int]) -> None:
        """Of the adapters of some slots."""
        changed = {
            slot: place for slot, place in places.items() if place != self._known_places[slot]
        }
        if not changed:
            return
        packed = self._packed(list(changed), list(changed.values()))
        self.places.index_copy_(0, packed[0].long(), packed[1])
        for slot, place in changed.items():
            self._known_places[slot] = place

    def update(self, rows: Sequence[Row]) -> int:
        """Copy new pages of these rows into the tables; returns how many. Mostly none: a sequence
        in its slot only gains pages, one whenever the last is full."""
        indices: list[int] = []
        pages: list[int] = []
        for row in rows:
            known, count = self._known_pages[row.slot], len(row.blocks)
            if count > known:
                first = row.slot * self._width
                indices.extend(range(first + known, first + count))
                pages.extend(row.blocks[known:])
                self._known_pages[row.slot] = count
        if indices:
            packed = self._packed(indices, pages)
            self.table.view(-1).index_copy_(0, packed[0].long(), packed[1])
        return len(indices)

    def _packed(self, indices: list[int], pages: list[int]) -> torch.Tensor:
        """int32 [2, entries] on the device, in one copy."""
        return on_device([indices, pages], torch.int32, self._runtime.device)
