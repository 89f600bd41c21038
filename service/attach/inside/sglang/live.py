"""A sequence that is live in SGLang's scheduler, and a step that runs there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.attach.inside.sglang.ends import output_tokens
from telemetry.facts.engine_records import Row, Skip
from telemetry.facts.reasons import EndReason


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


class PlannedRow(NamedTuple):
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
    result: Any = field(default=None)


def planned_rows(
    batch: Any, lives: dict[str, Live], chunked: Any, draft_tokens: int
) -> Iterator[PlannedRow]:
    """The rows of a batch that was just planned; sequences that are not known are left out.
    `chunked` is the request whose prompt goes on in a later step."""
    if not batch.forward_mode.is_extend():
        for request in batch.reqs:
            if (live := lives.get(request.rid)) is not None:
                yield _decode(live, 1 + draft_tokens)
        return
    decoding = {id(request) for request in batch.decoding_reqs or ()}
    for request, context, tokens in zip(
        batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True
    ):
        live = lives.get(request.rid)
        if live is None:
            continue
        if id(request) in decoding:
            yield _decode(live, 1)
        else:
            yield _prefill(live, context, tokens, request is not chunked)


def committed_row(row: PlannedRow) -> Row:
    """The row with its outcome, which is in SGLang's request. A row that should have given a token
    and gave none is wasted: its sequence had ended, or was preempted."""
    live = row.live
    if live.has_ended or row.preemptions != live.preemptions:
        return _row(row, 1 if row.samples else 0, row.samples)
    total = output_tokens(live.request)
    sampled = max(0, total - live.output_tokens)
    live.output_tokens = total
    if row.samples and not sampled and not row.is_prefill:
        return _row(row, 1, True)
    return _row(row, sampled, False)


def _decode(live: Live, tokens: int) -> PlannedRow:
    """With draft tokens, how many of those before it were accepted is not known yet."""
    request = live.request
    context = live.computed_tokens
    if tokens > 1:
        context = max(context, len(request.origin_input_ids) + len(request.output_ids) - 1)
    live.computed_tokens = context + 1
    recompute = max(0, min(context + tokens, live.lost_tokens) - context)
    return PlannedRow(live, False, tokens, context, recompute, True, live.preemptions)


def _prefill(live: Live, context: int, tokens: int, samples: bool) -> PlannedRow:
    live.computed_tokens = context + tokens
    recompute = max(0, min(context + tokens, live.lost_tokens) - context)
    return PlannedRow(live, True, tokens, context, recompute, samples, live.preemptions)


def _row(row: PlannedRow, sampled: int, wasted: bool) -> Row:
    return Row(
        row.live.seq_id,
        row.is_prefill,
        row.tokens,
        row.context_tokens,
        row.recompute_tokens,
        sampled,
        wasted,
    )
