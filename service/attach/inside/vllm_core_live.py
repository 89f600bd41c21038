"""A sequence that is live in vLLM's engine core, and a step that runs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from telemetry.facts.engine_records import Row, Skip
from telemetry.facts.reasons import EndReason


@dataclass(slots=True, eq=False)
class Live:
    """`request` is vLLM's object. `prefill_tokens` are to be computed before the sequence
    generates: its prompt, and after a preemption its output too. Up to `computed_tokens` they had
    been computed before a preemption. `queued_tokens` are its tokens while it waits. Of the aliases
    of its blocks, `told_blocks` were recorded."""

    name: str
    seq_id: int
    request: Any
    queued_tokens: int
    prefill_tokens: int = 0
    computed_tokens: int = 0
    told_blocks: int = 0
    is_waiting: bool = True
    awaits_grammar: bool = False
    has_ended: bool = False


class PlannedRow(NamedTuple):
    """A row whose outcome is not known yet. `samples`: its last token gives a new one."""

    live: Live
    is_prefill: bool
    tokens: int
    context_tokens: int
    recompute_tokens: int
    samples: bool


class Ending(NamedTuple):
    """A sequence that vLLM, which knows it as `key`, has ended."""

    key: str
    live: Live
    reason: EndReason
    output_tokens: int
    preemptions: int


@dataclass(slots=True)
class Flight:
    """A step between its plan and its outcome. `output` is vLLM's plan; a step is found again by
    this very object, as the numbers of objects are used again."""

    output: Any
    step_id: int
    begin_ns: int
    planned_ns: int
    rows: list[PlannedRow]
    skips: tuple[Skip, ...]
    preempted: tuple[int, ...]
    budget_tokens: int


def planned_row(live: Live, tokens: int) -> PlannedRow:
    """The next `tokens` of a sequence, which vLLM counts as computed from the plan on."""
    context = live.request.num_computed_tokens - tokens
    end = context + tokens
    return PlannedRow(
        live,
        context < live.prefill_tokens,
        tokens,
        context,
        max(0, min(end, live.computed_tokens) - context),
        end >= live.prefill_tokens,
    )


def committed_row(row: PlannedRow, sampled: Mapping[str, int]) -> Row:
    """`sampled` has the number of new tokens of each sequence that got an outcome. A row that
    should have given a token and has no outcome is wasted: its sequence had ended, or what was in
    flight was dropped."""
    live, is_prefill, tokens, context, recompute, samples = row
    count = sampled.get(live.name)
    if samples and (count is None or (count == 0 and not is_prefill)):
        return Row(live.seq_id, is_prefill, tokens, context, recompute, 1, True)
    return Row(
        live.seq_id,
        is_prefill,
        tokens,
        context,
        recompute,
        count or 0,
        count is None and live.has_ended,
    )
