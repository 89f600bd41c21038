"""Compiles each GPU kernel as its launcher launches it, for real GPUs, without one: tensors have no
memory, and what Triton would launch is only compiled. Prints a line of JSON for each kernel that a
launch was made of. Triton must not be interpreted in this process.

    python -m tests.support.models.compiled_kernels [--all]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from service.device.cache.kv_cache import KvFormat, KvTensor
from service.device.quantization.kept_matrix import Fp8Matrix, Int4Matrix
from service.device.quantization.quantized_matrix import QuantizedMatrix
from service.device.quantization.rows import FP8
from service.device.quantization.triton_kept import fp8_product, int4_product
from service.device.quantization.triton_products import quantize_tokens, quantized_product
from service.device.spec import DUMMY_SHAPES, ModelSpec
from service.device.triton.attention import (
    Heads,
    Sequences,
    Singles,
    attend_sequences,
    attend_singles,
)
from service.device.triton.fused import gated, norm_of_sum, rope_and_write_kv
from service.device.triton.lora import ModuleTable, Tiles, add_low_rank

TARGETS = {"A100": GPUTarget("cuda", 80, 32), "H100": GPUTarget("cuda", 90, 32)}
TYPES = {
    torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int8: "*i8", torch.uint8: "*u8",
    torch.int32: "*i32", torch.int64: "*i64", FP8: "*fp8e4nv",
}  # fmt: skip
PAGE, TOKENS, ROWS = 64, 5, 3
# fp8 is multiplied and cast by GPUs from Ada on
WITHOUT_FP8 = "A100"


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class Compiling:
    """Stands in for a launch: compiles it for each target, one like it once."""

    def __init__(self, targets: dict[str, GPUTarget]) -> None:
        self._targets = targets
        self.launched: dict[str, dict[str, Any]] = {}

    def run(
        self, kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **more: Any
    ) -> None:
        del grid, warmup
        values = dict(zip(kernel.arg_names, args, strict=False)) | more
        signature = {name: _type_of(kernel, name, values[name]) for name in kernel.arg_names}
        constants = {name: values[name] for name, kind in signature.items() if kind == "constexpr"}
        key = f"{kernel.__name__} {signature} {constants}"
        if key in self.launched:
            return
        row: dict[str, Any] = {"kernel": kernel.__name__, "constants": _plain(constants)}
        for name, target in self._targets.items():
            if name == WITHOUT_FP8 and "*fp8e4nv" in signature.values():
                continue
            row[name] = _compiled(kernel, signature, constants, target)
        self.launched[key] = row
        print(json.dumps(row), flush=True)


def _type_of(kernel: JITFunction[Any], name: str, value: Any) -> str:
    if value is None or kernel.params[kernel.arg_names.index(name)].is_constexpr:
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    # Triton makes a constant of 1
    return "constexpr" if value == 1 else "i32"


def _plain(constants: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in constants.items() if value is not None}


def _compiled(
    kernel: JITFunction[Any],
    signature: dict[str, str],
    constants: dict[str, Any],
    target: GPUTarget,
) -> dict[str, Any]:
    """What it takes of a multiprocessor, or why it cannot be compiled."""
    try:
        made = triton.compile(ASTSource(kernel, signature, constants), target=target)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}: {error.__cause__ or ''}"}
    return {"shared_bytes": made.metadata.shared}


# --- launches ------------------------------------------------------------------------------


def cells(spec: ModelSpec, kv_format: KvFormat, dtype: torch.dtype) -> KvTensor:
    held = {KvFormat.PLAIN: dtype, KvFormat.INT8: torch.int8, KvFormat.FP8: FP8}[kv_format]
    data = meta(8, PAGE, spec.kv_heads, spec.head_dim, dtype=held)
    scaled = kv_format is not KvFormat.PLAIN
    scales = meta(8, PAGE, spec.kv_heads, dtype=torch.float32) if scaled else None
    return KvTensor(data, scales)


def of_attention(spec: ModelSpec, kv_format: KvFormat, dtype: torch.dtype) -> None:
    shape = Heads(spec.heads, spec.kv_heads, spec.head_dim)
    keys = values = cells(spec, kv_format, dtype)
    query = meta(TOKENS, spec.heads, spec.head_dim, dtype=dtype)
    ints = meta(ROWS, dtype=torch.int32)
    table = meta(ROWS, 4, dtype=torch.int32)
    rows = Sequences(table, ints, ints, ints, ints, ints)
    attend_sequences(query, torch.empty_like(query), keys, values, rows, shape)
    for parts in (1, 8):
        singles = Singles(table, ints, ints, parts)
        attend_singles(query, torch.empty_like(query), keys, values, singles, shape)


def of_layers(spec: ModelSpec, kv_format: KvFormat, dtype: torch.dtype) -> None:
    shape = Heads(spec.heads, spec.kv_heads, spec.head_dim)
    keys = values = cells(spec, kv_format, dtype)
    qkv = meta(TOKENS, spec.heads + 2 * spec.kv_heads, spec.head_dim, dtype=dtype)
    turn = meta(TOKENS, spec.head_dim // 2, dtype=torch.float32)
    to = meta(TOKENS, dtype=torch.int64)
    norm = meta(spec.head_dim, dtype=dtype)
    for norms in (None, (norm, norm)):
        rope_and_write_kv(qkv, keys, values, turn, turn, to, shape, norms, spec.norm_eps)
    hidden, weight = meta(TOKENS, spec.hidden, dtype=dtype), meta(spec.hidden, dtype=dtype)
    for delta in (None, hidden):
        norm_of_sum(hidden, delta, weight, spec.norm_eps)
    gated(meta(TOKENS, 2 * spec.ffn, dtype=dtype))


def of_products(spec: ModelSpec, dtype: torch.dtype) -> None:
    hidden, outputs = spec.hidden, spec.ffn
    for tokens, bias in ((2, None), (64, meta(outputs, dtype=dtype))):
        x = meta(tokens, hidden, dtype=dtype)
        for kind in (torch.int8, FP8):
            held, scales = meta(outputs, hidden, dtype=kind), meta(outputs, 1, dtype=torch.float32)
            quantized_product(x, QuantizedMatrix(held, scales, dtype), bias)
        groups = meta(outputs, hidden // 32, dtype=dtype)
        codes = meta(outputs, hidden // 2, dtype=torch.uint8)
        zeros = meta(outputs, hidden // 32, dtype=torch.uint8)
        int4_product(x, Int4Matrix(codes, groups, zeros), bias)
        blocks = meta(outputs, -(-hidden // 128), dtype=torch.float32)
        fp8_product(x, Fp8Matrix(meta(outputs, hidden, dtype=FP8), blocks, 128), bias)
    quantize_tokens(meta(TOKENS, hidden, dtype=dtype))


def of_adapters(spec: ModelSpec, dtype: torch.dtype) -> None:
    ints = meta(ROWS, dtype=torch.int32)
    addresses = meta(4, 3, dtype=torch.int64)
    for sizes, most_rows in (((spec.q_size, spec.kv_size, spec.kv_size), 1), ((spec.hidden,), 32)):
        x, out = meta(TOKENS, spec.hidden, dtype=dtype), meta(TOKENS, sum(sizes), dtype=dtype)
        table = ModuleTable(addresses, meta(4, dtype=torch.int32), sizes)
        add_low_rank(x, out, table, Tiles(ints, ints, ints, most_rows), 16)


def wide_heads() -> ModelSpec:
    """As Gemma's: the widest that our attention takes."""
    return replace(DUMMY_SHAPES["llama-1b"], heads=8, kv_heads=4, head_dim=256)


def launches(shapes: Sequence[str], dtypes: Sequence[torch.dtype]) -> None:
    for dtype in dtypes:
        of_attention(wide_heads(), KvFormat.PLAIN, dtype)
        of_attention(wide_heads(), KvFormat.INT8, dtype)
    for name, dtype in product(shapes, dtypes):
        spec = DUMMY_SHAPES[name]
        for kv_format in KvFormat:
            of_attention(spec, kv_format, dtype)
            of_layers(spec, kv_format, dtype)
        of_products(spec, dtype)
        of_adapters(spec, dtype)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", help="of every shape, dtype and GPU")
    every = parser.parse_args().all
    compiling = Compiling(TARGETS if every else {"H100": TARGETS["H100"]})
    JITFunction.run = lambda kernel, *args, **more: compiling.run(kernel, *args, **more)  # type: ignore[assignment,method-assign]
    shapes = ("smollm2-135m", "llama-1b", "llama-8b") if every else ("llama-1b",)
    launches(shapes, (torch.bfloat16, torch.float32) if every else (torch.bfloat16,))
    rows = compiling.launched.values()
    return 1 if any("error" in row.get(name, {}) for row in rows for name in TARGETS) else 0


if __name__ == "__main__":
    sys.exit(main())
