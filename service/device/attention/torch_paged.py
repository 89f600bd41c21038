"""Plain torch attention over gathered pages: correct first, the reference for the others.

A prefill chunk is one SDPA call over its gathered context. Decode rows are grouped by
context length, so that one gather and one SDPA serve a whole group; within a group the
longest context is at most twice the shortest, which bounds the padding. Of a layer with a
window only the pages within it are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from service.device.attention.base import Capabilities
from service.device.cache.kv_cache import KvCache, KvFormat
from service.device.inputs import SequenceSpan, StepInputs
from service.device.spec import EVERYTHING, Reach


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """`rows` int64 [n] of the flat batch; `pages` int64 [n, pages]; `mask` bool
    [n, 1, 1, tokens] (None when every row sees all of them); `tokens` = longest context."""

    rows: torch.Tensor
    pages: torch.Tensor
    mask: torch.Tensor | None
    tokens: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Queries [begin, end); `mask` bool [queries, tokens], None where it is the causal one of as
    many queries as tokens."""

    begin: int
    end: int
    pages: torch.Tensor
    tokens: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Calls:
    """What the layers of one window compute."""

    groups: tuple[_DecodeGroup, ...]
    chunks: tuple[_Chunk, ...]


class _Prepared:
    """A step; what a window needs is made when the first layer with that window asks for it."""

    def __init__(self, inputs: StepInputs, build: Callable[[StepInputs, int], _Calls]) -> None:
        self._inputs = inputs
        self._build = build
        spans = (*inputs.decodes, *inputs.prefills)
        self._longest = max((one.context_tokens + one.query_tokens for one in spans), default=0)
        self._calls: dict[int, _Calls] = {}

    def of(self, window: int | None) -> _Calls:
        reach = self._longest if window is None else min(window, self._longest)
        if reach not in self._calls:
            self._calls[reach] = self._build(self._inputs, reach)
        return self._calls[reach]


class TorchPagedAttention:
    """Implements `AttentionBackend` on any torch device."""

    def __init__(self, page_tokens: int, device: torch.device) -> None:
        self._page_tokens = page_tokens
        self._device = device

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="torch",
            page_tokens=self._page_tokens,
            devices=("cpu", "cuda"),
            dtypes=(torch.float32, torch.bfloat16),
            kv_formats=tuple(KvFormat),
            mixed_batch=True,
        )

    def prepare(self, inputs: StepInputs) -> _Prepared:
        return _Prepared(inputs, self._calls)

    def run(
        self,
        query: torch.Tensor,
        layer: int,
        cache: KvCache,
        prepared: _Prepared,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        calls = prepared.of(reach.window)
        for group in calls.groups:
            keys, values = cache.gather(layer, group.pages)
            out[group.rows] = _decode(query[group.rows], keys, values, group, reach.scale)
        for chunk in calls.chunks:
            keys, values = cache.gather(layer, chunk.pages)
            out[chunk.begin : chunk.end] = _prefill(
                query[chunk.begin : chunk.end], keys, values, chunk, reach.scale
            )
        return out

    def _calls(self, inputs: StepInputs, window: int) -> _Calls:
        groups = tuple(self._group(spans, window) for spans in _by_length(inputs.decodes))
        chunks = tuple(self._chunk(span, window) for span in inputs.prefills)
        return _Calls(groups, chunks)

    def _group(self, spans: list[SequenceSpan], window: int) -> _DecodeGroup:
        """Pages from the one on in which a row's window begins."""
        page = self._page_tokens
        firsts = [max(0, span.context_tokens + 1 - window) for span in spans]
        skipped = [first // page for first in firsts]
        begins = [first % page for first in firsts]
        ends = [
            span.context_tokens + 1 - page * pages
            for span, pages in zip(spans, skipped, strict=True)
        ]
        tables = [span.blocks[pages:] for span, pages in zip(spans, skipped, strict=True)]
        width, longest = max(len(table) for table in tables), max(ends)
        mask = None
        if any(begins) or min(ends) < longest:
            columns = torch.arange(longest, device=self._device)
            mask = (columns >= self._column(begins)) & (columns < self._column(ends))
            mask = mask[:, None, None, :]
        padded = [[*table, *[table[0]] * (width - len(table))] for table in tables]
        return _DecodeGroup(
            rows=torch.tensor([span.begin for span in spans], device=self._device),
            pages=torch.tensor(padded, device=self._device),
            mask=mask,
            tokens=longest,
        )

    def _chunk(self, span: SequenceSpan, window: int) -> _Chunk:
        skipped = max(0, span.context_tokens + 1 - window) // self._page_tokens
        before = span.context_tokens - skipped * self._page_tokens
        tokens = before + span.query_tokens
        mask = None
        if before or span.query_tokens > window:
            shape = (span.query_tokens, tokens)
            mask = torch.ones(shape, dtype=torch.bool, device=self._device)
            mask = mask.tril(diagonal=before).triu(diagonal=before - window + 1)
        return _Chunk(
            begin=span.begin,
            end=span.begin + span.query_tokens,
            pages=torch.tensor(span.blocks[skipped:], device=self._device),
            tokens=tokens,
            mask=mask,
        )

    def _column(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=self._device)[:, None]


def _by_length(spans: tuple[SequenceSpan, ...]) -> list[list[SequenceSpan]]:
    """Groups whose longest context is at most twice the shortest."""
    groups: list[list[SequenceSpan]] = []
    for span in sorted(spans, key=lambda span: span.context_tokens):
        if groups and span.context_tokens + 1 <= 2 * (groups[-1][0].context_tokens + 1):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: _DecodeGroup,
    scale: float | None,
) -> torch.Tensor:
    """One query a row over pages [rows, pages, page_tokens, kv_heads, head_dim]; the heads
    that share a key head become the query dimension."""
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[3]
    folded = query.view(rows, kv_heads, heads // kv_heads, head_dim)
    shape = (rows, -1, kv_heads, head_dim)
    key = keys.view(shape)[:, : group.tokens].transpose(1, 2)
    value = values.view(shape)[:, : group.tokens].transpose(1, 2)
    out = functional.scaled_dot_product_attention(
        folded, key, value, attn_mask=group.mask, scale=scale
    )
    return out.reshape(rows, heads, head_dim)


def _prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    chunk: _Chunk,
    scale: float | None,
) -> torch.Tensor:
    """All queries of one sequence against its pages [pages, page_tokens, kv_heads, head_dim],
    causal at the bottom right."""
    key = keys.flatten(0, 1)[: chunk.tokens].transpose(0, 1)
    value = values.flatten(0, 1)[: chunk.tokens].transpose(0, 1)
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key[None],
        value[None],
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
