"""What lies between the matrix products of a layer, one kernel each: residual sum with norm,
rotation with the write to the cache, and the gate of the feed-forward.

Sums are float32 whatever is held.
"""

from __future__ import annotations

import triton
import triton.language as tl

from service.device.kernels.rounding_kernels import on_fp8_grid


@triton.jit
def add_norm(hidden, delta, weight, out, eps, width, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """`hidden` [tokens, width] becomes its sum with `delta` where ADDS; `out` is its
    root-mean-square norm times `weight`. Grid (tokens,)."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width
    at = tl.program_id(0).to(tl.int64) * width + lanes
    x = tl.load(hidden + at, mask=inside, other=0.0)
    if ADDS:
        x = x + tl.load(delta + at, mask=inside, other=0.0)
        tl.store(hidden + at, x, mask=inside)
    wide = x.to(tl.float32)
    root = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    scaled = wide * root * tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate(gate_up, out, width, BLOCK: tl.constexpr):
    """`out` [tokens, width] = silu of the first half of `gate_up` [tokens, 2 * width] times the
    second. Grid (tokens, blocks)."""
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < width
    first = tl.load(gate_up + token * 2 * width + lanes, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(gate_up + token * 2 * width + width + lanes, mask=inside, other=0.0)
    found = first / (1.0 + tl.exp(-first)) * second.to(tl.float32)
    tl.store(out + token * width + lanes, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _normed(first, second, weight, lanes, inside, eps, HALF: tl.constexpr):
    """Both halves of a head divided by its root mean square, times `weight` [2 * HALF]."""
    mean = (tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF)
    root = tl.rsqrt(mean + eps)
    one = tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(weight + HALF + lanes, mask=inside, other=0.0).to(tl.float32)
    return first * root * one, second * root * two


@triton.jit
def _put(base, scales, head, first, second, lanes, inside, HALF: tl.constexpr, MOST: tl.constexpr):
    """Write a head into the cache: as it is, or, where MOST is not 0, quantized to at most MOST."""
    at = base + head * 2 * HALF + lanes
    if MOST != 0.0:
        largest = tl.maximum(tl.max(tl.abs(first), 0), tl.max(tl.abs(second), 0))
        scale = tl.maximum(largest / MOST, 1.1754943508222875e-38)
        tl.store(scales + head, scale)
        first, second = first / scale, second / scale
        if MOST == 127.0:
            first, second = tl.floor(first + 0.5), tl.floor(second + 0.5)
        else:
            first, second = on_fp8_grid(first), on_fp8_grid(second)
    tl.store(at, first.to(base.dtype.element_ty), mask=inside)
    tl.store(at + HALF, second.to(base.dtype.element_ty), mask=inside)


@triton.jit
def rope_and_write_kv_kernel(
    qkv, query, keys, values, key_scales, value_scales, cos, sin, slot_mapping, q_norm, k_norm, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    NORMS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """One head of one token of `qkv` [tokens, HEADS + 2 * KV_HEADS, 2 * HALF]: queries are
    rotated into `query`, keys rotated and values as they are written to the cache at `slot_mapping`
    (int64 [tokens]). `cos` and `sin` are [tokens, HALF]. Grid (tokens, HEADS + 2 * KV_HEADS)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < HALF
    at = (token * (HEADS + 2 * KV_HEADS) + head) * 2 * HALF + lanes
    first = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(qkv + at + HALF, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        if NORMS:
            if head < HEADS:
                first, second = _normed(first, second, q_norm, lanes, inside, eps, HALF)
            else:
                first, second = _normed(first, second, k_norm, lanes, inside, eps, HALF)
        c = tl.load(cos + token * HALF + lanes, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + token * HALF + lanes, mask=inside, other=0.0).to(tl.float32)
        first, second = first * c - second * s, second * c + first * s
    if head < HEADS:
        to = query + (token * HEADS + head) * 2 * HALF + lanes
        tl.store(to, first.to(query.dtype.element_ty), mask=inside)
        tl.store(to + HALF, second.to(query.dtype.element_ty), mask=inside)
    else:
        kv_slot = tl.load(slot_mapping + token)
        if head < HEADS + KV_HEADS:
            place = kv_slot * KV_HEADS + head - HEADS
            _put(keys, key_scales, place, first, second, lanes, inside, HALF, MOST)
        else:
            place = kv_slot * KV_HEADS + head - HEADS - KV_HEADS
            _put(values, value_scales, place, first, second, lanes, inside, HALF, MOST)
