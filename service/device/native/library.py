"""Python binding of the compiled library: structs, functions, and error codes as exceptions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from pathlib import Path

import torch

from service.device.native.build import NoNativeLibrary, library_path


class NumberKind(IntEnum):
    """How a weight or a cache entry is stored; the C++ `Kind`."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2


class KeptNumbers(IntEnum):
    """How a weight is stored that keeps its checkpoint's form; the rest of the C++ `Kind`."""

    FP8 = 3
    Q8_BLOCKS = 4
    Q4_BLOCKS = 5
    Q6_BLOCKS = 6
    INT4 = 7
    INT4_WIDE = 8


class MatrixName(IntEnum):
    """A weight matrix; the C++ `MatrixName`."""

    QKV = 0
    OUT = 1
    GATE = 2
    UP = 3
    DOWN = 4
    HEAD = 5
    EMBEDDING = 6


class NormName(IntEnum):
    """A norm's weights; the C++ `NormName`."""

    INPUT = 0
    QUERY = 1
    KEY = 2
    FFN = 3
    FINAL = 4
    OUT = 5
    FFN_OUT = 6


class DecoderConfig(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim")),
        *((name, c_int32) for name in ("ffn", "vocab", "threads", "weights_kind", "cache_kind")),
        *((name, c_int32) for name in ("rotary_dim", "gelu_gate", "wide_norms")),
        *((name, c_float) for name in ("norm_eps", "attention_scale", "embedding_scale")),
        *((name, c_float) for name in ("residual_scale", "logit_scale", "logit_cap")),
    ]


class PartStruct(ctypes.Structure):
    """Some outputs of a matrix as a file holds them; pointers stay valid while the call runs."""

    _fields_ = [
        *((name, c_int32) for name in ("first", "rows", "kind", "group")),
        *((name, c_void_p) for name in ("codes", "scales", "halves", "zeros", "bias")),
    ]


class BatchStruct(ctypes.Structure):
    """One step; pointers stay valid while the call runs."""

    _fields_ = [
        *((name, c_int32) for name in ("tokens", "spans", "samples", "cache_pages")),
        *((name, c_void_p) for name in ("token_ids", "positions", "slot_mapping", "sampled")),
        *((name, c_void_p) for name in ("span", "pages", "logits", "states", "segment")),
        ("segments", c_int32),
    ]


class AdapterMatrices(ctypes.Structure):
    """One module of a layer of an adapter; the C++ `AdapterMatrices`."""

    _fields_ = [
        *((name, c_int32) for name in ("layer", "module", "rank")),
        *((name, c_void_p) for name in ("down", "up", "scales")),
    ]


_SIGNATURES = {
    "ps_create": [POINTER(DecoderConfig), POINTER(c_void_p)],
    "ps_set_matrix": [c_void_p, c_int, c_int, c_void_p, c_void_p],
    "ps_set_part": [c_void_p, c_int, c_int, POINTER(PartStruct)],
    "ps_set_order": [c_void_p, c_int, c_int, c_void_p],
    "ps_set_norm": [c_void_p, c_int, c_int, c_void_p],
    "ps_set_rope": [c_void_p, c_int, c_void_p, c_void_p, c_int],
    "ps_set_layer": [c_void_p, c_int, c_int, c_int],
    "ps_set_cache": [c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p],
    "ps_place_adapter": [
        c_void_p,
        c_int,
        POINTER(AdapterMatrices),
        c_int,
        c_int,
        POINTER(c_int64),
    ],
    "ps_drop_adapter": [c_void_p, c_int],
    "ps_forward": [c_void_p, POINTER(BatchStruct)],
    "ps_head": [c_void_p, c_void_p, c_int, c_void_p],
}
_NO_MEMORY, _OUT_OF_BOUNDS = 1, 3
_NO_WINDOW = 1 << 30  # the C++ `kNoWindow`


class Library:
    """One decoder inside the compiled library. Calls release the interpreter lock."""

    def __init__(self, path: Path, config: DecoderConfig) -> None:
        """Raises NoNativeLibrary when the file cannot be loaded."""
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NoNativeLibrary(f"{path.name}: {error}") from error
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        library.ps_destroy.argtypes, library.ps_destroy.restype = [c_void_p], None
        self._library = library
        self._handle = c_void_p()
        _check(library.ps_create(ctypes.byref(config), ctypes.byref(self._handle)), "create")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.ps_destroy(self._handle)

    def set_matrix(
        self, layer: int, name: MatrixName, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """Copy float32 [out, in] and perhaps [out] into the library's own layout."""
        code = self._library.ps_set_matrix(
            self._handle, layer, name, floats_at(weight), None if bias is None else floats_at(bias)
        )
        _check(code, name.name)

    def set_part(self, layer: int, name: MatrixName, part: PartStruct) -> None:
        """Copy a part into the library's own layout; the first of a matrix begins it anew."""
        code = self._library.ps_set_part(self._handle, layer, name, ctypes.byref(part))
        _check(code, name.name)

    def set_order(self, layer: int, name: MatrixName, order: torch.Tensor) -> None:
        """Copy int32 [in]: which input of a row each stored input is for. After the parts."""
        assert order.dtype is torch.int32, order.dtype
        assert order.is_contiguous()
        code = self._library.ps_set_order(self._handle, layer, name, order.data_ptr())
        _check(code, name.name)

    def set_norm(self, layer: int, name: NormName, weight: torch.Tensor) -> None:
        _check(self._library.ps_set_norm(self._handle, layer, name, floats_at(weight)), name.name)

    def set_rope(self, which: int, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Copy float32 [positions, rotary_dim / 2] of rope 0 or 1."""
        code = self._library.ps_set_rope(
            self._handle, which, floats_at(cos), floats_at(sin), len(cos)
        )
        _check(code, "rope")

    def set_layer(self, layer: int, window: int | None, rope: int) -> None:
        """How many tokens a layer's queries see, None for all, and which rope turns them."""
        code = self._library.ps_set_layer(self._handle, layer, window or _NO_WINDOW, rope)
        _check(code, "layer")

    def set_cache(
        self, layer: int, keys: int, values: int, key_scales: int | None, value_scales: int | None
    ) -> None:
        """Addresses of the layer's pages; the caller keeps the memory."""
        code = self._library.ps_set_cache(
            self._handle, layer, keys, values, key_scales, value_scales
        )
        _check(code, "cache")

    def place_adapter(self, number: int, matrices: list[AdapterMatrices], kind: NumberKind) -> int:
        """Copy an adapter whose A and B are of `kind`; the bytes that it takes. Raises
        MemoryError."""
        array, taken = (AdapterMatrices * len(matrices))(*matrices), c_int64()
        code = self._library.ps_place_adapter(
            self._handle, number, array, len(matrices), kind, ctypes.byref(taken)
        )
        _check(code, "adapter")
        return taken.value

    def drop_adapter(self, number: int) -> None:
        _check(self._library.ps_drop_adapter(self._handle, number), "adapter")

    def forward(self, batch: BatchStruct) -> None:
        """Compute one step. Raises MemoryError, IndexError or RuntimeError."""
        _check(self._library.ps_forward(self._handle, ctypes.byref(batch)), "forward")

    def head(self, states: torch.Tensor, logits: torch.Tensor) -> None:
        """Write float32 logits [rows, vocab] of float32 final states [rows, hidden]."""
        code = self._library.ps_head(
            self._handle, floats_at(states), len(states), floats_at(logits)
        )
        _check(code, "head")


def load_library(config: DecoderConfig, progress: Callable[[str], None]) -> Library:
    """Compile if need be, and load. Raises NoNativeLibrary."""
    return Library(library_path(progress), config)


def floats_at(tensor: torch.Tensor) -> int:
    """The address of contiguous float32."""
    assert tensor.dtype is torch.float32, tensor.dtype
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def _check(code: int, what: str) -> None:
    if code == _NO_MEMORY:
        raise MemoryError(f"native decoder, {what}: out of memory")
    if code == _OUT_OF_BOUNDS:
        raise IndexError(f"native decoder, {what}: an index of the batch is out of bounds")
    if code != 0:
        raise RuntimeError(f"native decoder, {what}: failed")
