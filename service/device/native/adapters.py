"""LoRA adapters in the C++ decoder's own layout."""

from __future__ import annotations

import torch

from service.device.inputs import AdapterRows
from service.device.lora.weights import AdapterWeights
from service.device.native.library import AdapterMatrices, Library, NumberKind

_KINDS = {torch.float32: NumberKind.FLOAT32, torch.bfloat16: NumberKind.BFLOAT16}


class NativeAdapters:
    """Implements `service.device.lora.store.AdapterStore`; the numbers are the library's."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._bytes: dict[int, int] = {}

    def place(self, number: int, weights: AdapterWeights) -> int:
        matrices = [
            AdapterMatrices(
                layer=layer,
                module=module,
                rank=low.rank,
                down=low.down.data_ptr(),
                up=low.up.data_ptr(),
                scales=low.scales.data_ptr(),
            )
            for layer, modules in enumerate(weights.layers)
            for module, low in modules.items()
        ]
        kind = _KINDS[weights.dtype]
        self._bytes[number] = self._library.place_adapter(number, matrices, kind)
        return sum(self._bytes.values())

    def drop(self, number: int) -> int:
        self._library.drop_adapter(number)
        del self._bytes[number]
        return sum(self._bytes.values())


def packed_segments(segments: tuple[AdapterRows, ...]) -> torch.Tensor:
    """The C++ `AdapterSegment`s, int32 [segments, 3]."""
    rows = [(one.adapter, one.begin, one.tokens) for one in segments]
    return torch.tensor(rows, dtype=torch.int32)
