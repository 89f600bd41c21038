"""Weights from a GGUF file, kept in their blocks or dequantised tensor by tensor.

llama.cpp stores the query and key projections of some families with the rotary pairs
interleaved; they are put back into halves here, so that the decoder knows one layout.

While a decoder loads and converts one layer, a thread dequantises what it will ask for of the next:
never more than one, so that the price is a layer's memory.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from service.device.models.architecture import Architecture
from service.device.models.gguf_keys import GENERAL_PREFIXES, of_family
from service.device.models.gguf_reader import GgufConfig
from service.device.models.registry import architecture_of_gguf
from service.device.models.tensors import Place, check_gguf, layer_of, tensor_names
from service.device.quantization.kept_kinds import KeptForm, KeptKind
from service.device.quantization.kept_matrix import GgufMatrix
from service.device.spec import ModelSpec
from service.model_files.gguf_file import GgufFile
from service.model_files.strict_keys import StrictKeys

_KEPT = {"Q4_K": KeptKind.Q4_K, "Q6_K": KeptKind.Q6_K, "Q8_0": KeptKind.Q8_0}


class GgufWeights:
    """Answers canonical names from one GGUF file."""

    def __init__(self, path: str) -> None:
        self._file = GgufFile(Path(path))
        self._architecture, self._spec = _read(self._file)
        self._names = self._architecture.gguf_tensors
        shapes = {name: info.shape for name, info in self._file.tensors.items()}
        check_gguf(self._file.path, self._spec, self._names, shapes)
        self._reader: ThreadPoolExecutor | None = None
        self._keeps: frozenset[KeptKind] = frozenset()
        self._ahead: dict[str, Future[torch.Tensor]] = {}
        self._layer = -1

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def tensor(self, name: str) -> torch.Tensor:
        self._read_ahead(name)
        ready = self._ahead.pop(name, None)
        return self._load(name) if ready is None else ready.result()

    def kept_form(self, name: str) -> KeptForm | None:
        """Implements `KeptSource`, of the formats that have a product of their own."""
        (stored,) = self._names.place(self._spec, name).stored
        info = self._file.tensors.get(stored)
        kind = None if info is None or len(info.shape) != 2 else _KEPT.get(info.kind.name)
        if info is None or kind is None:
            return None
        return KeptForm(kind, 8 * info.kind.block_bytes / info.kind.block_values)

    def kept(self, name: str) -> GgufMatrix | None:
        if self.kept_form(name) is None:
            return None
        place = self._names.place(self._spec, name)
        (stored,) = place.stored
        blocks = self._file.raw(stored, self._order(name, place))
        return GgufMatrix(self._file.tensors[stored].kind, blocks)

    def begin_reading(self, keeps: Collection[KeptKind]) -> None:
        """Implements `ReadsAhead`."""
        self._keeps, self._layer = frozenset(keeps), -1
        self._reader = ThreadPoolExecutor(1, "phasescope-weights")

    def end_reading(self) -> None:
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
        self._reader = None
        self._ahead.clear()

    def _read_ahead(self, name: str) -> None:
        """At the first tensor of a layer, begin with the layer after it."""
        layer = layer_of(name)
        if self._reader is None or layer is None or layer == self._layer:
            return
        self._layer = layer
        for other in [n for n in self._ahead if layer_of(n) != layer]:
            self._ahead.pop(other).cancel()
        for following in tensor_names(self._spec):
            if layer_of(following) == layer + 1 and not self._is_kept(following):
                self._ahead[following] = self._reader.submit(self._load, following)

    def _is_kept(self, name: str) -> bool:
        form = self.kept_form(name)
        return form is not None and form.kind in self._keeps

    def _load(self, name: str) -> torch.Tensor:
        place = self._names.place(self._spec, name)
        return torch.from_numpy(self._file.load(place.stored[0], self._order(name, place)))

    def _order(self, name: str, place: Place) -> NDArray[np.int64] | None:
        """Which stored rows a tensor has, in our order; None for all as they are."""
        if place.rows is not None:
            return np.arange(place.begin, place.begin + place.rows)
        heads = self._interleaved_heads(name)
        return None if heads is None else halves_order(self._file, place.stored[0], heads)

    def _interleaved_heads(self, name: str) -> int | None:
        if self._architecture.gguf_interleaves_rope:
            if ".q_proj." in name:
                return self._spec.heads
            if ".k_proj." in name:
                return self._spec.kv_heads
        return None


def halves_order(file: GgufFile, stored: str, heads: int) -> NDArray[np.int64] | None:
    """Which stored row comes where, to undo the interleaving of rotary pairs: rows
    (head, pair, 2) become (head, 2, pair). Reordering rows before they are dequantised
    moves a sixth of the bytes."""
    info = file.tensors.get(stored)
    if info is None:
        return None  # `load` says so
    rows = info.shape[0]
    if rows % (2 * heads):
        return None  # the shape is wrong, and whoever checks it names it
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(rows)


def _read(file: GgufFile) -> tuple[Architecture, ModelSpec]:
    """Every key but the tokenizer's is obeyed, known to be harmless, or refused. Raises
    ConfigError."""
    stated = StrictKeys(
        file.path,
        {key: file.metadata[key] for key in file.metadata if not key.startswith("tokenizer.")},
    )
    architecture = architecture_of_gguf(file.path, stated.take("general.architecture"))
    prefix = architecture.gguf_name
    spec = architecture.read_gguf(
        GgufConfig(file, stated, prefix, architecture.gguf_tensors), architecture.family
    )
    stated.finish({**of_family(prefix), **architecture.ignored_gguf_keys}, GENERAL_PREFIXES)
    return architecture, spec
