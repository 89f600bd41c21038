"""A sequence that is live in vLLM's engine core, and a step that runs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from telemetry.facts.engine_records import Row
from telemetry.facts.reasons import EndReason
from telemetry.facts.step_parts import Skip


@dataclass(slots=True, eq=False)
class Live:
    """`key` is vLLM's name of it, and `request` vLLM's object. `prefill_tokens` are to be computed
    before the sequence generates: its prompt, and after a preemption its output too. Up to
    `computed_tokens` they had been computed before a preemption. `queued_tokens` are its tokens
    while it waits. Of the aliases of its blocks, `told_blocks` were recorded; with `seal_tokens`
    computed there is one more."""

    key: str
    seq_id: int
    request: Any
    queued_tokens: int
    prefill_tokens: int = 0
    computed_tokens: int = 0
    told_blocks: int = 0
    seal_tokens: int = 0
    is_waiting: bool = True
    awaits_grammar: bool = False
    has_ended: bool = False


PlannedRow = tuple[Live, bool, int, int, int, bool]
"""A row whose outcome is not known yet: the sequence, whether it is prefill, its tokens, its
context, those of its tokens that had been computed before, and whether its last token gives a new
one. A plain tuple, as one is made for each token."""


class Ending(NamedTuple):
    """A sequence that vLLM has ended."""

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
    """The next `tokens` of a sequence, which vLLM counts as computed from the plan on. What its
    client adds to a streaming session is prompt too."""
    request, prefill = live.request, live.prefill_tokens
    if request.num_prompt_tokens > prefill:
        prefill = request.num_prompt_tokens
    end = request.num_computed_tokens
    context = end - tokens
    if context >= prefill and context >= live.computed_tokens:
        return live, False, tokens, context, 0, True
    recompute = max(0, min(end, live.computed_tokens) - context)
    return live, context < prefill, tokens, context, recompute, end >= prefill


def committed_row(row: PlannedRow, sampled: Mapping[str, int]) -> Row:
    """`sampled` has the number of new tokens of each sequence that got an outcome. A row that
    should have given a token and has no outcome is wasted: its sequence had ended, or what was in
    flight was dropped."""
    live, is_prefill, tokens, context, recompute, samples = row
    count = sampled.get(live.key)
    if count:
        return Row(live.seq_id, is_prefill, tokens, context, recompute, count, False)
    if samples and (count is None or not is_prefill):
        return Row(live.seq_id, is_prefill, tokens, context, recompute, 1, True)
    is_wasted = count is None and live.has_ended
    return Row(live.seq_id, is_prefill, tokens, context, recompute, 0, is_wasted)
