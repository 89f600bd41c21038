"""Dequantizes blocks of the most common GGUF formats to float32, fast.

The `gguf` package supports all formats, but allocates an array for each arithmetic operation. For
the formats below, the same operations in the same order, so with bit-identical results, run over
pieces that fit a core's cache, on a few threads (numpy releases the interpreter lock). Other
formats use the package, which is imported only then. Layout: the block structs of ggml-common.h.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_PIECE_VALUES = 1 << 17
_SPLIT_VALUES = 1 << 20
_THREADS = 4


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`block_values` values are stored in `block_bytes` bytes; `number` is ggml's type id."""

    number: int
    name: str
    block_values: int
    block_bytes: int


class UnknownFormat(Exception):
    """A type id that the installed `gguf` package does not know."""


def format_of(number: int) -> BlockFormat:
    """The format with ggml's type id `number`. Raises UnknownFormat."""
    known = _KNOWN.get(number)
    if known is not None:
        return known[0]
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(number)
        return BlockFormat(number, kind.name, *GGML_QUANT_SIZES[kind])
    except (ValueError, KeyError) as error:
        raise UnknownFormat(f"type {number}") from error


def dequantize_blocks(rows: Bytes, kind: BlockFormat) -> Floats:
    """uint8 [rows, bytes] to float32 [rows, values]. Raises NotImplementedError."""
    known = _KNOWN.get(kind.number)
    if known is None:
        return _dequantize_with_package(rows, kind)
    values = rows.size // kind.block_bytes * kind.block_values
    flat = np.empty(values, np.float32)
    blocks = rows.reshape(-1, kind.block_bytes)
    out = flat.reshape(len(blocks), kind.block_values)
    threads = min(_THREADS, os.cpu_count() or 1)
    if values < _SPLIT_VALUES or threads == 1:
        _fill(blocks, out, known[1])
    else:
        cuts = [len(blocks) * part // threads for part in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            spans = [slice(a, b) for a, b in pairwise(cuts)]
            list(pool.map(lambda span: _fill(blocks[span], out[span], known[1]), spans))
    return flat.reshape(len(rows), -1)


def _fill(blocks: Bytes, out: Floats, reader: Callable[[Bytes, Floats], None]) -> None:
    step = max(1, _PIECE_VALUES // out.shape[1])
    for start in range(0, len(blocks), step):
        reader(blocks[start : start + step], out[start : start + step])


def _half(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of each block, as a column."""
    column = np.ascontiguousarray(blocks[:, start : start + 2])
    return column.view(np.float16).astype(np.float32)


def _f32(blocks: Bytes, out: Floats) -> None:
    out[:] = np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: Bytes, out: Floats) -> None:
    out[:] = np.ascontiguousarray(blocks).view(np.float16)


def _bf16(blocks: Bytes, out: Floats) -> None:
    wide = np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32)
    out[:] = (wide << 16).view(np.float32)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out)


def _nibbles(packed: Bytes, out: Floats) -> None:
    """Low halves of the bytes are the first sixteen values of a block, high halves the rest."""
    packed = np.ascontiguousarray(packed)
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8.0
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


_KNOWN: dict[int, tuple[BlockFormat, Callable[[Bytes, Floats], None]]] = {
    kind.number: (kind, reader)
    for kind, reader in (
        (BlockFormat(0, "F32", 1, 4), _f32),
        (BlockFormat(1, "F16", 1, 2), _f16),
        (BlockFormat(2, "Q4_0", 32, 18), _q4_0),
        (BlockFormat(3, "Q4_1", 32, 20), _q4_1),
        (BlockFormat(8, "Q8_0", 32, 34), _q8_0),
        (BlockFormat(30, "BF16", 1, 2), _bf16),
    )
}


def _dequantize_with_package(rows: Bytes, kind: BlockFormat) -> Floats:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    found: Any = dequantize(rows, GGMLQuantizationType(kind.number))
    flat: Floats = np.asarray(found, dtype=np.float32)
    return flat
