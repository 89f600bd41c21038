"""Plain torch attention over gathered pages: correct first, the reference for the others.

A prefill chunk is one SDPA call over its gathered context. Decode rows are grouped by
context length, so that one gather and one SDPA serve a whole group; within a group the
longest context is at most twice the shortest, which bounds the padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from service.device.attention.base import Capabilities
from service.device.cache.kv_cache import KvCache, KvFormat
from service.device.inputs import SequenceSpan, StepInputs


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """`rows` int64 [n] of the flat batch; `pages` int64 [n, pages]; `mask` bool
    [n, 1, 1, tokens] (None when no row is padded); `tokens` = longest context."""

    rows: torch.Tensor
    pages: torch.Tensor
    mask: torch.Tensor | None
    tokens: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Queries [begin, end); `mask` bool [queries, tokens] when there is past context."""

    begin: int
    end: int
    pages: torch.Tensor
    tokens: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Prepared:
    groups: tuple[_DecodeGroup, ...]
    chunks: tuple[_Chunk, ...]


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
        groups = tuple(self._group(spans) for spans in _by_length(inputs.decodes))
        chunks = tuple(self._chunk(span) for span in inputs.prefills)
        return _Prepared(groups, chunks)

    def run(
        self, query: torch.Tensor, layer: int, cache: KvCache, prepared: _Prepared
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        for group in prepared.groups:
            keys, values = cache.gather(layer, group.pages)
            out[group.rows] = _decode(query[group.rows], keys, values, group)
        for chunk in prepared.chunks:
            keys, values = cache.gather(layer, chunk.pages)
            out[chunk.begin : chunk.end] = _prefill(
                query[chunk.begin : chunk.end], keys, values, chunk
            )
        return out

    def _group(self, spans: list[SequenceSpan]) -> _DecodeGroup:
        lengths = [span.context_tokens + 1 for span in spans]
        longest = max(lengths)
        width = max(len(span.blocks) for span in spans)
        table = [[*span.blocks, *[span.blocks[0]] * (width - len(span.blocks))] for span in spans]
        mask = None
        if min(lengths) < longest:
            columns = torch.arange(longest, device=self._device)
            mask = columns < torch.tensor(lengths, device=self._device)[:, None]
            mask = mask[:, None, None, :]
        return _DecodeGroup(
            rows=torch.tensor([span.begin for span in spans], device=self._device),
            pages=torch.tensor(table, device=self._device),
            mask=mask,
            tokens=longest,
        )

    def _chunk(self, span: SequenceSpan) -> _Chunk:
        tokens = span.context_tokens + span.query_tokens
        mask = None
        if span.context_tokens:
            shape = (span.query_tokens, tokens)
            mask = torch.ones(shape, dtype=torch.bool, device=self._device)
            mask = mask.tril(diagonal=span.context_tokens)
        return _Chunk(
            begin=span.begin,
            end=span.begin + span.query_tokens,
            pages=torch.tensor(span.blocks, device=self._device),
            tokens=tokens,
            mask=mask,
        )


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
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: _DecodeGroup
) -> torch.Tensor:
    """One query a row over pages [rows, pages, page_tokens, kv_heads, head_dim]; the heads
    that share a key head become the query dimension."""
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[3]
    folded = query.view(rows, kv_heads, heads // kv_heads, head_dim)
    shape = (rows, -1, kv_heads, head_dim)
    key = keys.view(shape)[:, : group.tokens].transpose(1, 2)
    value = values.view(shape)[:, : group.tokens].transpose(1, 2)
    out = functional.scaled_dot_product_attention(folded, key, value, attn_mask=group.mask)
    return out.reshape(rows, heads, head_dim)


def _prefill(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, chunk: _Chunk
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
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
