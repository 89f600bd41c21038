"""A plan becomes tensors.

Tokens of all rows lie in one flat batch, decode rows first. The input token of a decode
row is not in the plan: it is the slot's last sampled token, which the executor fills in
when the step is computed. A decode row with drafts has several query tokens, so to the
attention it is a short prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from service.device.pinned import on_device
from service.engine.plan import DecodeRow, Plan, PrefillChunk

_Row = DecodeRow | PrefillChunk
_RowT = TypeVar("_RowT", DecodeRow, PrefillChunk)
_NO_ADAPTERS: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One row of the step: queries [begin, begin + query_tokens) of the flat batch attend
    to the first `context_tokens + query_tokens` tokens of the pages in `blocks`."""

    begin: int
    query_tokens: int
    context_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Tokens [begin, begin + tokens) of the flat batch have LoRA adapter number `adapter`."""

    adapter: int
    begin: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """`token_ids`, `positions` and `slot_mapping` (page * page_tokens + place: where the token's
    keys and values are written, as in vLLM) are int64 [tokens]; `sampled` int64 [samples]
    are the flat rows whose logits are wanted, in the order of `Plan.sampled_rows`, one for
    each token and draft of a decode row. `last_tokens` are the flat rows whose token is the
    last one sampled, in the order of `Plan.decodes`. `read`, int64 [rows], are the flat rows that
    prompt outputs are read from, in the order of `Plan.read_chunks`; None without any. `segments`
    are apart and in order; tokens in none of them are the base model's."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    sampled: torch.Tensor
    decodes: tuple[SequenceSpan, ...]
    prefills: tuple[SequenceSpan, ...]
    last_tokens: tuple[int, ...] = ()
    read: torch.Tensor | None = None
    segments: tuple[AdapterRows, ...] = ()


def build_inputs(
    plan: Plan,
    page_tokens: int,
    device: torch.device,
    adapters: Mapping[int, int] = _NO_ADAPTERS,
) -> StepInputs:
    """Read everything that a step needs from `plan`; decode rows get token 0 for now. `adapters`
    are numbers by slot: decodes with one adapter lie together, and so do chunks."""
    token_ids: list[int] = []
    positions: list[int] = []
    slot_mapping: list[int] = []
    sampled: list[int] = []
    decodes: list[SequenceSpan] = []
    prefills: list[SequenceSpan] = []
    last_tokens: list[int] = []
    segments: list[AdapterRows] = []
    read: list[int] = []

    def add(row: _Row) -> SequenceSpan:
        tokens = (0, *row.drafts) if isinstance(row, DecodeRow) else row.tokens
        start, blocks = row.start, row.blocks
        span = SequenceSpan(
            begin=len(token_ids),
            query_tokens=len(tokens),
            context_tokens=start,
            blocks=tuple(blocks[: -(-(start + len(tokens)) // page_tokens)]),
        )
        token_ids.extend(tokens)
        for position in range(start, start + len(tokens)):
            positions.append(position)
            page, place = blocks[position // page_tokens], position % page_tokens
            slot_mapping.append(page * page_tokens + place)
        _extend(segments, adapters.get(row.slot, 0), span)
        return span

    for row, span in _added(plan.decodes, adapters, add):
        last_tokens.append(span.begin)
        sampled.extend(range(span.begin, span.begin + span.query_tokens))
        (prefills if row.drafts else decodes).append(span)
    for chunk, span in _added(plan.prefills, adapters, add):
        prefills.append(span)
        begin = span.begin - chunk.start
        read.extend(range(begin + chunk.reads.first, begin + chunk.reads.stop))
        if chunk.samples:
            sampled.append(span.begin + span.query_tokens - 1)

    def tensor(values: list[int]) -> torch.Tensor:
        return on_device(values, torch.int64, device)

    return StepInputs(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        slot_mapping=tensor(slot_mapping),
        sampled=tensor(sampled),
        decodes=tuple(sorted(decodes, key=_begin)) if segments else tuple(decodes),
        prefills=tuple(sorted(prefills, key=_begin)) if segments else tuple(prefills),
        last_tokens=tuple(last_tokens),
        segments=tuple(segments),
        read=tensor(read) if read else None,
    )


def _added(
    rows: Sequence[_RowT], adapters: Mapping[int, int], add: Callable[[_RowT], SequenceSpan]
) -> Iterator[tuple[_RowT, SequenceSpan]]:
    """Add rows, those of one adapter one after the other; give them in the order of `rows`."""
    order: Iterable[int] = range(len(rows))
    if adapters:
        order = sorted(order, key=lambda index: adapters.get(rows[index].slot, 0))
    spans = {index: add(rows[index]) for index in order}
    return ((row, spans[index]) for index, row in enumerate(rows))


def _extend(segments: list[AdapterRows], adapter: int, span: SequenceSpan) -> None:
    """With the tokens of a span that lies behind them all."""
    if not adapter:
        return
    begin, tokens = span.begin, span.query_tokens
    if segments:
        last = segments[-1]
        if last.adapter == adapter and last.begin + last.tokens == begin:
            begin, tokens = last.begin, last.tokens + tokens
            segments.pop()
    segments.append(AdapterRows(adapter, begin, tokens))


def _begin(span: SequenceSpan) -> int:
    return span.begin
