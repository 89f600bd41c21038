"""Attention over paged keys and values.

The heads that share a key head lie in one tile, so that keys are read once for all of them. The
softmax is kept while keys stream by (FlashAttention-2, Dao, 2023); a single query against a long
context is cut into parts that are merged afterwards (Flash-Decoding, Dao et al., 2023), in a grid
that depends on nothing but the number of rows, so that a CUDA graph can hold it. Pages are found
through a table (PagedAttention, Kwon et al., SOSP 2023).

Shapes: `query` and `out` [tokens, HEADS, HEAD_DIM]; keys and values [slots, KV_HEADS, HEAD_DIM]
with slot = page * PAGE + place, and where SCALED float32 scales [slots, KV_HEADS]; `table` int32
[rows, table_width]. Exponents are base 2: `scale` holds the factor log2(e). A query sees its own
token and the `window` - 1 before it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _kv_slots_of(table, row, table_width, places, known, PAGE: tl.constexpr):
    """int64 cache slots of some places of a sequence; 0 where unknown."""
    page = tl.load(table + row * table_width + places // PAGE, mask=known, other=0)
    return page.to(tl.int64) * PAGE + places % PAGE


@triton.jit
def _heads_at(
    base, scales, kv_slots, kv_head, dims, known,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """[kv_slots, dims] of one key head, dequantised."""
    heads = kv_slots * KV_HEADS + kv_head
    inside = known[:, None] & (dims < HEAD_DIM)[None, :]
    values = tl.load(base + heads[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    if SCALED:
        scale = tl.load(scales + heads, mask=known, other=0.0)
        values = values.to(tl.float32) * scale[:, None]
    return values


@triton.jit
def _stream(
    q, positions, window, table, row, table_width, begin, end, kv_head, scale,
    keys, values, key_scales, value_scales,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Keys [begin, end) past the queries `q` at `positions`: the peak and the sum of the weights
    [BLOCK_M], and the weighted values [BLOCK_M, DIMS], all float32 and relative to the peak."""
    dims = tl.arange(0, DIMS)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, DIMS], tl.float32)
    for start in range(begin, end, BLOCK_N):
        places = start + tl.arange(0, BLOCK_N)
        known = places < end
        kv_slots = _kv_slots_of(table, row, table_width, places, known, PAGE)
        k = _heads_at(keys, key_scales, kv_slots, kv_head, dims, known, KV_HEADS, HEAD_DIM, SCALED)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION) * scale
        ago = positions[:, None] - places[None, :]
        seen = known[None, :] & (ago >= 0) & (ago < window)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - level[:, None])
        kept = tl.exp2(peak - level)
        total = total * kept + tl.sum(weights, 1)
        v = _heads_at(
            values, value_scales, kv_slots, kv_head, dims, known, KV_HEADS, HEAD_DIM, SCALED
        ).to(q.dtype)
        mixed = mixed * kept[:, None] + tl.dot(weights.to(q.dtype), v, input_precision=PRECISION)
        peak = higher
    return peak, total, mixed


@triton.jit(do_not_specialize=["table_width"])
def attend(
    query, out, keys, values, key_scales, value_scales,
    table, tile_rows, tile_firsts, begins, counts, contexts, scale, window, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr,
    PAGE: tl.constexpr, TILE_TOKENS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sequences with any number of queries, causal at the bottom right. Grid (tiles, KV_HEADS):
    a tile is TILE_TOKENS queries from `tile_firsts` on of the row `tile_rows`, whose `counts`
    queries begin at `begins` of the flat batch, behind `contexts` earlier tokens."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row, first = tl.load(tile_rows + tile), tl.load(tile_firsts + tile)
    begin, count, context = tl.load(begins + row), tl.load(counts + row), tl.load(contexts + row)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    lanes, dims = tl.arange(0, BLOCK_M), tl.arange(0, DIMS)
    token = first + lanes // GROUP
    live = (token < count) & (lanes < TILE_TOKENS * GROUP)
    heads = (begin + token).to(tl.int64) * HEADS + kv_head * GROUP + lanes % GROUP
    at = heads[:, None] * HEAD_DIM + dims[None, :]
    inside = live[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + at, mask=inside, other=0.0)
    end = context + tl.minimum(first + TILE_TOKENS, count)
    oldest = tl.maximum(context + first - window + 1, 0) // BLOCK_N * BLOCK_N
    _, total, mixed = _stream(
        q, context + token, window, table, row, table_width, oldest, end, kv_head, scale,
        keys, values, key_scales, value_scales,
        KV_HEADS, HEAD_DIM, DIMS, PAGE, BLOCK_M, BLOCK_N, SCALED, PRECISION,
    )  # fmt: skip
    sums = tl.where(total == 0.0, 1.0, total)  # lanes beyond the row may see nothing
    tl.store(out + at, (mixed / sums[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["table_width"])
def attend_part(
    query, partial, peaks, totals, keys, values, key_scales, value_scales,
    table, flat, lengths, scale, window, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr,
    PAGE: tl.constexpr, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One query a row against a part of its `lengths` keys, its own included. Grid (rows,
    KV_HEADS, PARTS). Writes `partial` [rows, HEADS, PARTS, DIMS], `peaks` and `totals`
    [rows, HEADS, PARTS], float32. A row of length 0 is padding."""
    row, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    oldest = tl.maximum(length - window, 0)
    share = tl.cdiv(tl.cdiv(length - oldest, BLOCK_N), PARTS) * BLOCK_N
    begin = oldest + part * share
    end = tl.minimum(begin + share, length)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    lanes, dims = tl.arange(0, BLOCK_M), tl.arange(0, DIMS)
    live = lanes < GROUP
    token = tl.load(flat + row).to(tl.int64)
    head = kv_head * GROUP + lanes
    at = (token * HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(query + at, mask=live[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    positions = tl.zeros([BLOCK_M], tl.int32) + length - 1
    peak, total, mixed = _stream(
        q, positions, window, table, row, table_width, begin, end, kv_head, scale,
        keys, values, key_scales, value_scales,
        KV_HEADS, HEAD_DIM, DIMS, PAGE, BLOCK_M, BLOCK_N, SCALED, PRECISION,
    )  # fmt: skip
    place = (row.to(tl.int64) * HEADS + head) * PARTS + part
    tl.store(peaks + place, peak, mask=live)
    tl.store(totals + place, total, mask=live)
    tl.store(partial + place[:, None] * DIMS + dims[None, :], mixed, mask=live[:, None])


@triton.jit
def merge_parts(
    partial, peaks, totals, out, flat,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
):  # fmt: skip
    """The parts of one row and head become its output. Grid (rows, HEADS)."""
    row, head = tl.program_id(0), tl.program_id(1)
    parts, dims = tl.arange(0, PARTS_PADDED), tl.arange(0, DIMS)
    there = parts < PARTS
    place = (row.to(tl.int64) * HEADS + head) * PARTS + parts
    peak = tl.load(peaks + place, mask=there, other=float("-inf"))
    level = tl.max(peak, 0)
    level = tl.where(level == float("-inf"), 0.0, level)
    weight = tl.exp2(peak - level)
    total = tl.sum(tl.load(totals + place, mask=there, other=0.0) * weight, 0)
    mixed = tl.load(partial + place[:, None] * DIMS + dims[None, :], mask=there[:, None], other=0.0)
    found = tl.sum(mixed * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    token = tl.load(flat + row).to(tl.int64)
    at = (token * HEADS + head) * HEAD_DIM + dims
    tl.store(out + at, found.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
