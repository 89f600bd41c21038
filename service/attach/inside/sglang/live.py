"""A sequence that is live in SGLang's scheduler, and a step that runs there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from service.attach.inside.sglang.ends import output_tokens
from telemetry.facts.engine_records import Row
from telemetry.facts.reasons import EndReason
from telemetry.facts.step_parts import Skip


@dataclass(slots=True, eq=False)
class Live:
    """`request` is SGLang's object. Of its tokens, `computed_tokens` have their keys and values, or
    will have them after the steps in flight; before its last preemption, `lost_tokens` had.
    `output_tokens` were committed. `queued_tokens` are its tokens while it waits. `abort_reason` is
    known before the sequence ends."""

    name: str
    seq_id: int
    request: Any
    queued_tokens: int
    queued_ns: int
    computed_tokens: int = 0
    lost_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    is_waiting: bool = True
    awaits_grammar: bool = False
    has_ended: bool = False
    abort_reason: EndReason | None = None


class PlannedRow(msgspec.Struct, frozen=True, gc=False):
    """A row whose outcome is not known yet. `samples`: its last token gives a new one.
    `preemptions` are those of the sequence up to the plan: after one more, what the row computed is
    dropped."""

    live: Live
    is_prefill: bool
    tokens: int
    context_tokens: int
    recompute_tokens: int
    samples: bool
    preemptions: int


@dataclass(slots=True, eq=False)
class Flight:
    """A step between its plan and its outcome. `batch` was planned; the scheduler goes on to use
    the same object for the next plan, so the step is found again by `result`, the very object that
    its launch returned. `budget_tokens` bounds the prompt tokens of the step."""

    batch: Any
    step_id: int
    begin_ns: int
    planned_ns: int
    rows: list[PlannedRow]
    skips: tuple[Skip, ...]
    preempted: tuple[int, ...]
    budget_tokens: int
    launched_ns: int = 0
    collected_ns: int = 0
    result: Any = None


def planned_rows(
    batch: Any, lives: dict[str, Live], chunked: Any, draft_tokens: int
) -> list[PlannedRow]:
    """The rows of a batch that was just planned; sequences that are not known are left out.
    `chunked` is the request whose prompt goes on in a later step."""
    if not batch.forward_mode.is_extend():
        return [
            _decode(live, 1 + draft_tokens)
            for request in batch.reqs
            if (live := lives.get(request.rid)) is not None
        ]
    decoding = {id(request) for request in batch.decoding_reqs or ()}
    rows = []
    for request, context, tokens in zip(
        batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True
    ):
        live = lives.get(request.rid)
        if live is None:
            continue
        if id(request) in decoding:
            rows.append(_decode(live, 1))
        else:
            rows.append(_prefill(live, context, tokens, request is not chunked))
    return rows


def committed_row(row: PlannedRow) -> Row:
    """The row with its outcome, which is in SGLang's request. A row that should have given a token
    and gave none is wasted: its sequence had ended, or was preempted."""
    live = row.live
    sampled, wasted = 0, False
    if live.has_ended or row.preemptions != live.preemptions:
        wasted = row.samples
    else:
        total = output_tokens(live.request)
        sampled = total - live.output_tokens
        live.output_tokens = total
        wasted = sampled <= 0 and not row.is_prefill
    return Row(
        live.seq_id,
        row.is_prefill,
        row.tokens,
        row.context_tokens,
        row.recompute_tokens,
        1 if wasted else sampled,
        wasted,
    )


def _decode(live: Live, tokens: int) -> PlannedRow:
    """The row of a decode. With draft tokens, how many of those before it were accepted is not
    known yet."""
    context = live.computed_tokens
    if tokens > 1:
        request = live.request
        context = max(context, len(request.origin_input_ids) + len(request.output_ids) - 1)
    live.computed_tokens = context + 1
    recompute = 0 if context >= live.lost_tokens else min(tokens, live.lost_tokens - context)
    return PlannedRow(live, False, tokens, context, recompute, True, live.preemptions)


def _prefill(live: Live, context: int, tokens: int, samples: bool) -> PlannedRow:
    live.computed_tokens = context + tokens
    recompute = max(0, min(tokens, live.lost_tokens - context))
    return PlannedRow(live, True, tokens, context, recompute, samples, live.preemptions)
