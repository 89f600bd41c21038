"""Reads the header of a GGUF file: metadata, and the position of each tensor.

The `gguf` package's reader creates an object for every string of the token list, which takes
seconds; this reader takes a tenth of a second. Both processes read the file at the start. Tensors
are dequantized by `gguf_blocks`. Layout: ggml's specification of GGUF versions 2 and 3.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.config.settings import ConfigError
from service.model_files.gguf_blocks import (
    BlockFormat,
    UnknownFormat,
    dequantize_blocks,
    format_of,
)

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_ALIGNMENT = "general.alignment"
_MOST_NESTED = 4  # arrays within an array; llama.cpp reads none
_LENGTH = struct.Struct("<Q")
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` is row-major (outermost first); `offset` in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    kind: BlockFormat
    offset: int
    size_bytes: int


class _Cursor:
    """Reads the header's values one after the other; raises struct.error at the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        length = self.scalar("Q")
        end = self.at + length
        if end > len(self._data):
            raise struct.error("string beyond the end")
        text = self._data[self.at : end].decode("utf-8", errors="replace")
        self.at = end
        return text

    def texts(self, count: int) -> list[str]:
        """`count` strings; inlined for speed, a token list has tens of thousands."""
        data, at, last = self._data, self.at, len(self._data)
        unpack = _LENGTH.unpack_from
        found: list[str] = []
        for _ in range(count):
            (length,) = unpack(data, at)
            at += 8 + length
            if at > last:
                raise struct.error("string beyond the end")
            found.append(str(data[at - length : at], "utf-8", "replace"))
        self.at = at
        return found

    def value(self, kind: int, nested: int = 0) -> Any:
        """Raises RecursionError where arrays are nested too deeply."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            if nested > _MOST_NESTED:
                raise RecursionError(f"more than {_MOST_NESTED} arrays within each other")
            item, length = self.scalar("I"), self.scalar("Q")
            if item in _SCALARS:
                values = struct.unpack_from(f"<{length}{_SCALARS[item]}", self._data, self.at)
                self.at += struct.calcsize(f"<{length}{_SCALARS[item]}")
                return list(values)
            if item == _STRING:
                return self.texts(length)
            return [self.value(item, nested + 1) for _ in range(length)]
        return self.scalar(_SCALARS[kind])


class GgufFile:
    """An open GGUF file: `metadata` by key, `tensors` by name."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when the file is missing, cut short or not GGUF."""
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is empty") from error
        try:
            self._read_header()
        except (struct.error, KeyError, ValueError, MemoryError, OverflowError) as error:
            raise ConfigError(
                f"{path} is not a whole GGUF file (its header breaks off); fetch it again"
            ) from error

    def load(self, name: str, order: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """A tensor as a new float32 array of its shape, or those of its rows that `order` names, in
        that order. Raises ConfigError."""
        info = self._info(name)
        try:
            if order is None:
                return dequantize_blocks(self.raw(name), info.kind).reshape(info.shape)
            if len(info.shape) == 1:
                return dequantize_blocks(self.raw(name), info.kind).reshape(-1)[order]
            rows = dequantize_blocks(self.raw(name, order), info.kind)
            return rows.reshape(-1, *info.shape[1:])
        except NotImplementedError as error:
            raise ConfigError(
                f"{self.path}: tensor {name} is {info.kind.name}, which the gguf package "
                "cannot dequantise; use another quantisation of the model"
            ) from error

    def raw(self, name: str, order: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """A tensor's blocks as in the file, uint8 [rows, bytes], or those of its rows that `order`
        names. Without one it is the file's own memory. Raises ConfigError."""
        info = self._info(name)
        flat = np.frombuffer(self._data, np.uint8, info.size_bytes, info.offset)
        rows = flat.reshape(math.prod(info.shape[:-1]), -1)
        return rows if order is None else rows[order]

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ConfigError(f"{self.path} has no tensor {name}")
        return info

    def _read_header(self) -> None:
        if self._data[:4] != _MAGIC:
            raise ConfigError(f"{self.path} is not a GGUF file")
        cursor = _Cursor(self._data)
        cursor.at = 4
        version = cursor.scalar("I")
        if version not in (2, 3):
            raise ConfigError(f"{self.path} is GGUF version {version}; 2 and 3 are supported")
        tensor_count, entry_count = cursor.scalar("Q"), cursor.scalar("Q")
        for _ in range(entry_count):
            self._metadata_entry(cursor)
        found = [self._tensor_entry(cursor) for _ in range(tensor_count)]
        alignment = self._alignment()
        start = -(-cursor.at // alignment) * alignment
        for name, shape, kind, offset in found:
            self._add_tensor(name, shape, kind, start + offset)

    def _metadata_entry(self, cursor: _Cursor) -> None:
        key = cursor.text()
        try:
            value = cursor.value(cursor.scalar("I"))
        except RecursionError as error:
            raise ConfigError(
                f"{self.path}: {key} is not supported: it has {error}; use another file"
            ) from error
        if key in self.metadata:
            raise ConfigError(f"{self.path} states {key} twice; use another file")
        self.metadata[key] = value

    def _alignment(self) -> int:
        """Of the tensors, in bytes. Raises ConfigError."""
        stated = self.metadata.get(_ALIGNMENT, 32)
        if type(stated) is not int or stated < 1 or stated & (stated - 1):
            raise ConfigError(
                f"{self.path}: {_ALIGNMENT} {str(stated)[:60]} is not supported: a power of two "
                "is expected"
            )
        return stated

    def _tensor_entry(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], BlockFormat, int]:
        name = cursor.text()
        dimensions = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
        try:
            kind = format_of(cursor.scalar("I"))
        except UnknownFormat as error:
            raise ConfigError(
                f"{self.path}: tensor {name} is of {error}, which the installed gguf package does "
                "not know; use another quantisation of the model, or a newer gguf"
            ) from error
        return name, tuple(reversed(dimensions)), kind, cursor.scalar("Q")

    def _add_tensor(
        self, name: str, shape: tuple[int, ...], kind: BlockFormat, offset: int
    ) -> None:
        if not shape or shape[-1] % kind.block_values or 0 in shape:
            raise ConfigError(
                f"{self.path}: tensor {name} of shape {list(shape)} is no whole blocks of "
                f"{kind.block_values} values ({kind.name}); fetch the file again"
            )
        if name in self.tensors:
            raise ConfigError(f"{self.path} has two tensors of the name {name}; use another file")
        values = math.prod(shape)
        size_bytes = values // kind.block_values * kind.block_bytes
        if offset + size_bytes > len(self._data):
            raise ConfigError(
                f"{self.path} is cut short: tensor {name} ends at byte {offset + size_bytes}, "
                f"the file at {len(self._data)}; fetch it again"
            )
        self.tensors[name] = TensorInfo(name, shape, kind, offset, size_bytes)
