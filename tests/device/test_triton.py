"""Our Triton kernels against plain torch, under Triton's interpreter: random pages, ratios of
heads, sizes, mixed batches, 8 bits. Outputs are poisoned first: what is not written shows."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.attention.triton_paged import TritonPagedAttention
from service.device.cache.kv_cache import KvFormat, KvTensor, make_cache
from service.device.inputs import build_inputs
from service.device.models.model import Decoder
from service.device.models.ops import PlainOps
from service.device.quantization.precision import Precision
from service.device.quantization.rows import quantize_rows
from service.device.rope import rotate
from service.device.spec import Reach
from service.device.triton.attention import (
    Heads,
    Sequences,
    Singles,
    attend_sequences,
    attend_singles,
    parts_for,
    tiles_of,
)
from service.device.triton.fused import gated, norm_of_sum, rope_and_write_kv
from service.device.triton.ops import FusedOps
from service.engine.plan import DecodeRow, Plan, PrefillChunk
from tests.support.examples import examples
from tests.support.servers.lively import LivelyWeights

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
FP32 = Precision(torch.float32, torch.float32)
PAGES = 40
POISON = float("nan")
KINDS = [None, torch.int8, torch.float8_e4m3fn]  # what keys and values are held as
shapes = st.builds(
    lambda kv_heads, group, dim: Heads(kv_heads * group, kv_heads, dim),
    st.integers(1, 3), st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([8, 16, 64, 80]),
)  # fmt: skip
reaches = st.builds(Reach, st.sampled_from([None, 0.5]), st.sampled_from([None, 1, 5, 17, 64]))


@dataclass
class World:
    """A cache of random cells and rows with scrambled pages."""

    shape: Heads
    page: int
    seed: int

    def __post_init__(self) -> None:
        self.draw = Random(self.seed)
        self.source = torch.Generator().manual_seed(self.seed)
        size = (PAGES, self.page, self.shape.kv_heads, self.shape.head_dim)
        self.plain = [torch.randn(size, generator=self.source) for _ in range(2)]
        self.sides = [KvTensor(one) for one in self.plain]

    def coded(self, kind: torch.dtype) -> None:
        """Keys and values quantized; the reference reads what they stand for."""
        for index, one in enumerate(self.plain):
            quantized, scales = quantize_rows(one, kind)
            self.sides[index] = KvTensor(quantized, scales)
            self.plain[index] = quantized.float() * scales

    def query(self, tokens: int) -> torch.Tensor:
        size = (tokens, self.shape.heads, self.shape.head_dim)
        return torch.randn(size, generator=self.source)

    def pages_of(self, tokens: int) -> list[int]:
        return self.draw.sample(range(PAGES), -(-tokens // self.page))

    def reference(
        self, query: torch.Tensor, pages: list[int], context: int, reach: Reach
    ) -> torch.Tensor:
        """Of one sequence's queries, causal at the bottom right."""
        count = len(query)
        key, value = (
            one[torch.tensor(pages)].flatten(0, 1)[: context + count].transpose(0, 1)[None]
            for one in self.plain
        )
        mask = torch.ones(count, context + count, dtype=torch.bool).tril(diagonal=context)
        if reach.window is not None:
            mask = mask.triu(diagonal=context - reach.window + 1)
        found = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None], key, value, attn_mask=mask, scale=reach.scale,
            enable_gqa=True,
        )  # fmt: skip
        return found[0].transpose(0, 1)


def int32(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def table_of(pages: list[list[int]]) -> torch.Tensor:
    width = max(map(len, pages))
    return int32([[*one, *[0] * (width - len(one))] for one in pages])


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)


@examples(8, 25)
@given(
    shapes, st.sampled_from([4, 16]), st.integers(0, 10**6), st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20)), min_size=1, max_size=3),
    reaches,
)  # fmt: skip
def test_sequences_of_any_length_attend_as_torch_does(
    shape: Heads,
    page: int,
    seed: int,
    kind: torch.dtype | None,
    rows: list[tuple[int, int]],
    reach: Reach,
) -> None:
    world = World(shape, page, seed)
    if kind is not None:
        world.coded(kind)
    counts, contexts = [count for count, _ in rows], [context for _, context in rows]
    gap = 2  # rows of others lie between
    begins = [sum(counts[:index]) + gap * index for index in range(len(rows))]
    query = world.query(sum(counts) + gap * len(rows))
    pages = [world.pages_of(count + context) for count, context in rows]
    tile_rows, firsts = tiles_of(counts, shape.tile_tokens)
    out = torch.full_like(query, POISON)
    attend_sequences(
        query, out, *world.sides,
        Sequences(
            table_of(pages), int32(begins), int32(counts), int32(contexts), int32(tile_rows),
            int32(firsts),
        ),
        shape, reach, block_keys=16,
    )  # fmt: skip

    mine = torch.zeros(len(query), dtype=torch.bool)
    for begin, count, context, held in zip(begins, counts, contexts, pages, strict=True):
        span = slice(begin, begin + count)
        mine[span] = True
        close(out[span], world.reference(query[span], held, context, reach))
    assert out[~mine].isnan().all(), "what is nobody's was written"


@settings(max_examples=25, deadline=None)
@given(
    shapes, st.sampled_from([4, 16]), st.integers(0, 10**6), st.sampled_from(KINDS),
    st.lists(st.integers(1, 100), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]), reaches,
)  # fmt: skip
def test_single_queries_in_any_number_of_parts_attend_as_torch_does(
    shape: Heads,
    page: int,
    seed: int,
    kind: torch.dtype | None,
    lengths: list[int],
    parts: int,
    reach: Reach,
) -> None:
    world = World(shape, page, seed)
    if kind is not None:
        world.coded(kind)
    flat = world.draw.sample(range(2 * len(lengths) + 1), len(lengths) + 1)
    query = world.query(2 * len(lengths) + 1)
    pages = [world.pages_of(length) for length in lengths]
    out = torch.full_like(query, POISON)
    rows = Singles(table_of([*pages, [0]]), int32(flat), int32([*lengths, 0]), parts)
    attend_singles(query, out, *world.sides, rows, shape, reach, block_keys=16)

    for place, length, held in zip(flat, lengths, pages, strict=False):
        close(out[place], world.reference(query[place][None], held, length - 1, reach)[0])
    assert not out[flat[-1]].any(), "padding attends to nothing"
    others = [place for place in range(len(query)) if place not in flat]
    assert out[others].isnan().all()


def test_a_row_has_as_many_parts_as_keep_the_device_busy() -> None:
    assert parts_for(rows=1, kv_heads=8, processors=132) == 32
    assert parts_for(rows=8, kv_heads=8, processors=132) == 8
    assert parts_for(rows=256, kv_heads=8, processors=132) == 1


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(1, 70), st.booleans(), st.integers(0, 10**6))
def test_the_norm_of_a_sum_is_torchs_and_the_sum_is_kept(
    tokens: int, width: int, adds: bool, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    hidden, delta = (torch.randn(tokens, width, generator=source) for _ in range(2))
    weight = torch.randn(width, generator=source)
    whole = hidden + delta if adds else hidden.clone()
    found = norm_of_sum(hidden, delta if adds else None, weight, 1e-5)

    close(found, functional.rms_norm(whole, (width,), weight, 1e-5))
    close(hidden, whole)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.sampled_from([1, 7, 64, 1500]), st.integers(0, 10**6))
def test_the_gate_is_torchs(tokens: int, width: int, seed: int) -> None:
    both = torch.randn(tokens, 2 * width, generator=torch.Generator().manual_seed(seed))
    first, second = both.chunk(2, dim=-1)
    close(gated(both), functional.silu(first) * second)


@examples(5, 15)
@given(
    shapes, st.booleans(), st.sampled_from(KINDS),
    st.integers(0, 10**6),
)  # fmt: skip
def test_rope_and_kv_writes_are_those_of_torch(
    shape: Heads, norms: bool, kind: torch.dtype | None, seed: int
) -> None:
    world = World(shape, 4, seed)
    tokens, dim = 5, shape.head_dim
    size = (PAGES, 4, shape.kv_heads)
    sides = [
        KvTensor(torch.zeros(*size, dim, dtype=kind), torch.zeros(*size, 1))
        if kind is not None
        else KvTensor(torch.full((*size, dim), POISON))
        for _ in range(2)
    ]
    qkv = torch.randn(tokens, shape.heads + 2 * shape.kv_heads, dim, generator=world.source)
    angles = torch.randn(tokens, dim // 2, generator=world.source)
    cells = torch.tensor(world.draw.sample(range(PAGES * 4), tokens))
    weights = (torch.randn(dim, generator=world.source), torch.randn(dim, generator=world.source))
    query = rope_and_write_kv(
        qkv, *sides, angles.cos(), angles.sin(), cells, shape, weights if norms else None, 1e-6
    )  # fmt: skip

    parts = list(qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1))
    for index in range(2):
        if norms:
            parts[index] = functional.rms_norm(parts[index], (dim,), weights[index], 1e-6)
        parts[index] = rotate(parts[index], angles.cos()[:, None], angles.sin()[:, None])
    close(query, parts[0])
    for side, wanted in zip(sides, parts[1:], strict=True):
        held = side.data.float().flatten(0, 1)[cells]
        if side.scales is None:
            close(held, wanted)
            untouched = torch.ones(PAGES * 4, dtype=torch.bool)
            untouched[cells] = False
            assert side.data.flatten(0, 1)[untouched].isnan().all()
        else:
            scales = side.scales.flatten(0, 1)[cells]
            bound = 0.51 * scales if kind is torch.int8 else wanted.abs() / 16 + 1e-3 * scales
            assert ((held * scales - wanted).abs() <= bound + 1e-6).all()


# --- a whole decoder -----------------------------------------------------------------------


def sides_of(weights: Any, kv_format: KvFormat, page: int) -> tuple[Stepper, Stepper]:
    """The reference, and the same decoder with our kernels."""
    spec = weights.spec
    found: list[Stepper] = []
    for attention, ops in (
        (TorchPagedAttention(page, CPU), PlainOps(spec)),
        (TritonPagedAttention(spec, page, CPU), FusedOps(spec)),
    ):
        decoder = Decoder(weights, attention, 512, FP32, CPU, ops=ops)
        found.append(Stepper(decoder, make_cache(kv_format, spec, PAGES, page, torch.float32, CPU)))
    return found[0], found[1]


class Stepper:
    """A decoder with its cache, driven by plans."""

    def __init__(self, decoder: Decoder, cache: Any) -> None:
        self._decoder, self._cache = decoder, cache

    def step(self, plan: Plan, last: list[int]) -> torch.Tensor:
        """`last` are the tokens that the decode rows go on from."""
        inputs = build_inputs(plan, self._cache.page_tokens, CPU)
        if plan.decodes:
            inputs.token_ids[list(inputs.last_tokens)] = torch.tensor(last)
        return self._decoder.forward(inputs, self._cache)


def plan_of(decodes: list[DecodeRow], prefills: list[PrefillChunk]) -> Plan:
    return Plan(0, tuple(decodes), tuple(prefills), (), (), (), (), 1000)


def chunk(place: int, tokens: list[int], start: int, blocks: list[int]) -> PrefillChunk:
    return PrefillChunk(place, place, start, tokens, blocks, 0, True, 0)


def row(place: int, position: int, blocks: list[int], drafts: tuple[int, ...] = ()) -> DecodeRow:
    return DecodeRow(place, place, position, blocks, 0, drafts)


@pytest.mark.parametrize("kv_format", list(KvFormat))
def test_a_decoder_gives_the_same_logits_with_our_kernels(kv_format: KvFormat) -> None:
    """Chunked prompts beside decodes, with drafts, over scrambled pages."""
    theirs, ours = sides_of(LivelyWeights(qk_norm=True), kv_format, 16)
    ids = [int(one) for one in torch.randint(3, 500, (200,), generator=seeded(1))]
    blocks = [[7, 2, 30, 11], [5, 19, 1, 8], [14, 3, 9, 21]]
    for plan, last in (
        (plan_of([], [chunk(0, ids[:20], 0, blocks[0]), chunk(1, ids[20:57], 0, blocks[1])]), []),
        (plan_of([row(0, 20, blocks[0])], [chunk(2, ids[60:75], 0, blocks[2])]), [33]),
        (
            plan_of(
                [row(0, 21, blocks[0]), row(1, 37, blocks[1], (44, 45)), row(2, 15, blocks[2])],
                [],
            ),
            [34, 35, 36],
        ),
        (plan_of([row(2, 16, blocks[2])], [chunk(1, ids[80:90], 40, blocks[1])]), [37]),
    ):
        wanted, found = theirs.step(plan, last), ours.step(plan, last)
        scale = float(wanted.std())
        tolerance = 1e-4 if kv_format is KvFormat.PLAIN else 0.03
        assert float((found - wanted).abs().max()) < tolerance * max(1.0, scale)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
