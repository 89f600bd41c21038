"""What the device remembers of each slot, so that a decode step needs next to nothing from the
host: the last token, and the table of the sequence's pages.

One slot more than there are stands for padding: its pages are one page that nobody else has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from service.device.cuda.runtime import Runtime
from service.engine.plan import DecodeRow, PrefillChunk

Row = DecodeRow | PrefillChunk


class DeviceSlots:
    """`last_tokens` int64 [slots + 1], `table` int32 [slots + 1, pages]; `padding` is the last
    slot."""

    def __init__(self, runtime: Runtime, slots: int, pages_each: int, spare_page: int) -> None:
        device = runtime.device
        self.padding = slots
        self.last_tokens = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.table = torch.zeros((slots + 1, pages_each), dtype=torch.int32, device=device)
        self.table[slots] = spare_page
        self._held = [0] * slots
        self._runtime = runtime
        self._width = pages_each

    def forget(self, slot: int) -> None:
        """Another sequence may take it."""
        self._held[slot] = 0

    def learn(self, rows: Sequence[Row]) -> int:
        """Bring the tables up to date; returns how many entries were new. Mostly none: while a
        sequence has its slot its pages only become more, by one whenever it has filled one."""
        places: list[int] = []
        pages: list[int] = []
        for row in rows:
            held, count = self._held[row.slot], len(row.blocks)
            if count > held:
                first = row.slot * self._width
                places.extend(range(first + held, first + count))
                pages.extend(row.blocks[held:])
                self._held[row.slot] = count
        if places:
            packed = self._packed(places, pages)
            self.table.view(-1).index_copy_(0, packed[0].long(), packed[1])
        return len(places)

    def _packed(self, places: list[int], pages: list[int]) -> torch.Tensor:
        """int32 [2, entries] on the device, in one copy."""
        host = self._runtime.host_tensor((2, len(places)), torch.int32)
        host.numpy()[:] = np.array([places, pages], dtype=np.int32)
        return host.to(self._runtime.device, non_blocking=True)
