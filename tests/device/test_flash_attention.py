"""FlashAttention packages behind our interface. None runs without a GPU: here each is a stand-in
that does, with plain torch, what its documentation says of the arguments that we pass."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from service.device.attention.flash_paged import FlashPagedAttention
from service.device.attention.flash_providers import (
    FlashAttention2,
    FlashAttention3,
    Provider,
    TorchVarlen,
    find_provider,
)
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import KvFormat, make_cache
from service.device.inputs import build_inputs
from service.device.spec import Reach
from service.engine.plan import DecodeRow, Plan, PrefillChunk
from tests.support.servers.lively import LivelyWeights

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
PAGES = 24
SPEC = LivelyWeights().spec


def one_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    window: tuple[int, int],
) -> torch.Tensor:
    """[queries, heads, dim] against [keys, kv_heads, dim], causal at the bottom right."""
    queries, keys = len(query), len(key)
    before, behind = window
    assert behind == 0
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(diagonal=keys - queries)
    if before >= 0:
        mask = mask.triu(diagonal=keys - queries - before)
    found = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], key.transpose(0, 1)[None], value.transpose(0, 1)[None],
        attn_mask=mask, scale=scale, enable_gqa=True,
    )  # fmt: skip
    return found[0].transpose(0, 1)


def rows_of(
    query: torch.Tensor,
    pages: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    begins: torch.Tensor,
    lengths: torch.Tensor,
    scale: float | None = None,
    window: tuple[int, int] = (-1, 0),
) -> torch.Tensor:
    assert table.dtype is begins.dtype is lengths.dtype is torch.int32
    out = torch.full_like(query, float("nan"))
    for row, length in enumerate(lengths.tolist()):
        span = slice(int(begins[row]), int(begins[row + 1]))
        key, value = (side[table[row].long()].flatten(0, 1)[:length] for side in pages)
        if length:
            out[span] = one_row(query[span], key, value, scale, window)
    return out


class StandInPackages:
    """Stand-ins for the packages' functions; `splits` and `calls` record their arguments."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.splits: list[int] = []

    def fa3(
        self, q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any, page_table: Any,
        cu_seqlens_q: Any, max_seqlen_q: int, causal: bool, num_splits: int,
        softmax_scale: float | None, window_size: tuple[int, int],
    ) -> torch.Tensor:  # fmt: skip
        assert causal
        assert max_seqlen_q == int(cu_seqlens_q.diff().max())
        self.calls.append("fa3")
        self.splits.append(num_splits)
        return rows_of(
            q, (k_cache, v_cache), page_table, cu_seqlens_q, cache_seqlens, softmax_scale,
            window_size,
        )  # fmt: skip

    def fa2_varlen(
        self, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
        max_seqlen_k: int, *, causal: bool, block_table: Any, softmax_scale: float | None,
        window_size: tuple[int, int],
    ) -> torch.Tensor:  # fmt: skip
        assert causal
        assert k.shape[1] % 256 == 0
        lengths = cu_seqlens_k.diff()
        assert max_seqlen_q == int(cu_seqlens_q.diff().max())
        assert max_seqlen_k == int(lengths.max())
        self.calls.append("varlen")
        return rows_of(q, (k, v), block_table, cu_seqlens_q, lengths, softmax_scale, window_size)

    def fa2_cache(
        self, q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any, block_table: Any,
        causal: bool, softmax_scale: float | None, window_size: tuple[int, int],
    ) -> torch.Tensor:  # fmt: skip
        assert causal
        assert q.dim() == 4
        assert q.shape[1] == 1
        self.calls.append("cache")
        begins = torch.arange(len(q) + 1, dtype=torch.int32)
        found = rows_of(
            q[:, 0], (k_cache, v_cache), block_table, begins, cache_seqlens, softmax_scale,
            window_size,
        )  # fmt: skip
        return found[:, None]

    def varlen(
        self, query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int,
        max_k: int, *, window_size: tuple[int, int], scale: float | None, enable_gqa: bool,
        seqused_k: Any, block_table: Any,
    ) -> torch.Tensor:  # fmt: skip
        assert cu_seq_k is None
        assert enable_gqa
        assert (max_q, max_k) >= (int(cu_seq_q.diff().max()), int(seqused_k.max()))
        self.calls.append("torch")
        return rows_of(query, (key, value), block_table, cu_seq_q, seqused_k, scale, window_size)


PROVIDERS: dict[str, Callable[[StandInPackages], Provider]] = {
    "fa3": lambda asked: FlashAttention3(asked.fa3),
    "fa2": lambda asked: FlashAttention2(asked.fa2_varlen, asked.fa2_cache),
    "torch": lambda asked: TorchVarlen(asked.varlen),
}


def random_plan(draw: Random, page: int, decodes: int, chunks: int) -> Plan:
    free = list(range(PAGES))
    draw.shuffle(free)

    def pages(tokens: int) -> list[int]:
        return [free.pop() for _ in range(-(-tokens // page))]

    rows = []
    for row in range(decodes):
        start = draw.randrange(1, 2 * page - 4)
        drafts = (1, 2) if draw.random() < 0.2 else ()
        rows.append(DecodeRow(row, row, start, pages(start + 3), 0, drafts))
    prompts = []
    for row in range(decodes, decodes + chunks):
        count, start = draw.randrange(1, 30), draw.choice([0, draw.randrange(1, page)])
        prompts.append(PrefillChunk(row, row, start, [5] * count, pages(start + count), 0, True, 0))
    return Plan(0, tuple(rows), tuple(prompts), (), (), (), (), 1000)


@pytest.mark.parametrize("name", list(PROVIDERS))
@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 4), st.integers(0, 3), st.integers(0, 10**6),
    st.sampled_from([Reach(), Reach(0.7, 1), Reach(None, 9), Reach(0.2, 300)]),
)  # fmt: skip
def test_a_mixed_batch_attends_as_torch_does(
    name: str, decodes: int, chunks: int, seed: int, reach: Reach
) -> None:
    asked = StandInPackages()
    provider = PROVIDERS[name](asked)
    page = provider.page_tokens
    plan = random_plan(Random(seed), page, max(decodes, 1 - chunks), chunks)
    inputs = build_inputs(plan, page, CPU)
    source = torch.Generator().manual_seed(seed)
    cache = make_cache(KvFormat.PLAIN, SPEC, PAGES, page, torch.float32, CPU)
    for side in cache.kv_tensors(1):
        side.data.copy_(torch.randn(side.data.shape, generator=source))
    query = torch.randn(len(inputs.token_ids), SPEC.heads, SPEC.head_dim, generator=source)
    theirs, ours = TorchPagedAttention(page, CPU), FlashPagedAttention(provider, CPU)

    wanted = theirs.run(query, 1, cache, theirs.prepare(inputs), reach)
    found = ours.run(query, 1, cache, ours.prepare(inputs), reach)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    if name == "fa2" and inputs.decodes and inputs.prefills:
        assert asked.calls == ["cache", "varlen"]
    else:
        assert len(asked.calls) == 1


@pytest.mark.parametrize("name", list(PROVIDERS))
def test_a_captured_decode_is_the_same_with_padding(name: str) -> None:
    """FlashAttention-3 gets the largest number of splits, which a graph cannot change."""
    asked = StandInPackages()
    provider = PROVIDERS[name](asked)
    page = provider.page_tokens
    source = torch.Generator().manual_seed(3)
    cache = make_cache(KvFormat.PLAIN, SPEC, PAGES, page, torch.float32, CPU)
    for side in cache.kv_tensors(0):
        side.data.copy_(torch.randn(side.data.shape, generator=source))
    query = torch.randn(3, SPEC.heads, SPEC.head_dim, generator=source)
    table = torch.tensor([[4, 2], [9, 1], [0, 0]], dtype=torch.int32)
    lengths = torch.tensor([page + 3, 5, 0], dtype=torch.int32)
    attention = FlashPagedAttention(provider, CPU)

    found = attention.run(query, 0, cache, attention.prepare_decodes(table, lengths))
    pages = (cache.kv_tensors(0)[0].data, cache.kv_tensors(0)[1].data)
    begins = torch.arange(4, dtype=torch.int32)
    torch.testing.assert_close(found[:2], rows_of(query, pages, table, begins, lengths)[:2])
    if name == "fa3":
        assert asked.splits == [32]


def module(**functions: Any) -> ModuleType:
    found: Any = SimpleNamespace(**functions)
    return found


def importing(**known: Any) -> Callable[[str], Any]:
    def import_module(name: str) -> Any:
        if name not in known:
            raise ImportError(f"No module named {name!r}")
        return known[name]

    return import_module


def test_the_best_usable_package_is_chosen_with_the_reasons_against_the_others() -> None:
    asked = StandInPackages()
    old = module(flash_attn_with_kvcache=lambda q, k_cache, v_cache: q)
    both = module(flash_attn_varlen_func=asked.fa2_varlen, flash_attn_with_kvcache=asked.fa2_cache)
    newest = module(flash_attn_with_kvcache=asked.fa3)

    found, fault = find_provider(importing(flash_attn_interface=newest, flash_attn=both))
    assert (found and found.name, fault) == ("flash-attn-3", "")
    found, fault = find_provider(importing(flash_attn_interface=old, flash_attn=both))
    assert found is not None
    assert found.name == "flash-attn-2"
    assert found.page_tokens == 256
    assert "flash-attn-3: this version's <lambda> has no page_table" in fault
    assert find_provider(importing())[0] is None


def test_torchs_own_attention_is_chosen_only_where_it_runs_a_flash_kernel() -> None:
    """Its built-in one refuses a block table when it runs, which would be too late."""
    asked = StandInPackages()
    for active, taken in ((None, None), ("FA3", "torch-varlen")):
        attention = module(current_flash_attention_impl=lambda active=active: active)
        found, _ = find_provider(
            importing(
                **{
                    "torch.nn.attention.varlen": module(varlen_attn=asked.varlen),
                    "torch.nn.attention": attention,
                }
            )
        )
        assert (found and found.name) == taken


def test_the_capabilities_of_the_installed_torch_are_read() -> None:
    """The real modules: nothing is guessed from a version, and nothing is raised."""
    found, fault = find_provider()
    assert found is None
    assert "flash-attn-2: No module named" in fault
    assert "torch-varlen: " in fault
