"""A plan becomes tensors.

Tokens of all rows lie in one flat batch, decode rows first. The input token of a decode
row is not in the plan: it is the slot's last sampled token, which the executor fills in
when the step is computed. A decode row with drafts has several query tokens, so to the
attention it is a short prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from service.engine.plan import Plan


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One row of the step: queries [begin, begin + query_tokens) of the flat batch attend
    to the first `context_tokens + query_tokens` tokens of the pages in `blocks`."""

    begin: int
    query_tokens: int
    context_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """`token_ids`, `positions` and `slot_mapping` (page * page_tokens + place: where the token's
    keys and values are written, as in vLLM) are int64 [tokens]; `sampled` int64 [samples]
    are the flat rows whose logits are wanted, in the order of `Plan.sampled_rows`, one for
    each token and draft of a decode row. `last_tokens` are the flat rows whose token is the
    last one sampled, in the order of `Plan.decodes`. `read`, int64 [rows], are the flat rows that
    prompt outputs are read from, in the order of `Plan.read_chunks`; None without any."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    sampled: torch.Tensor
    decodes: tuple[SequenceSpan, ...]
    prefills: tuple[SequenceSpan, ...]
    last_tokens: tuple[int, ...] = ()
    read: torch.Tensor | None = None


def build_inputs(plan: Plan, page_tokens: int, device: torch.device) -> StepInputs:
    """Read everything that a step needs from `plan`; decode rows get token 0 for now."""
    token_ids: list[int] = []
    positions: list[int] = []
    slot_mapping: list[int] = []
    sampled: list[int] = []
    decodes: list[SequenceSpan] = []
    prefills: list[SequenceSpan] = []
    last_tokens: list[int] = []
    read: list[int] = []

    def add(tokens: Sequence[int], start: int, blocks: Sequence[int]) -> SequenceSpan:
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
        return span

    for row in plan.decodes:
        span = add((0, *row.drafts), row.start, row.blocks)
        last_tokens.append(span.begin)
        sampled.extend(range(span.begin, span.begin + span.query_tokens))
        (prefills if row.drafts else decodes).append(span)
    for chunk in plan.prefills:
        span = add(chunk.tokens, chunk.start, chunk.blocks)
        prefills.append(span)
        begin = span.begin - chunk.start
        read.extend(range(begin + chunk.reads.first, begin + chunk.reads.stop))
        if chunk.samples:
            sampled.append(len(token_ids) - 1)

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)

    return StepInputs(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        slot_mapping=tensor(slot_mapping),
        sampled=tensor(sampled),
        decodes=tuple(decodes),
        prefills=tuple(prefills),
        last_tokens=tuple(last_tokens),
        read=tensor(read) if read else None,
    )
