"""Why live sequences of SGLang have no row in a step, read from the scheduler after it planned.

SGLang computes prompts before it goes on to generate: in a step with prompt tokens the running
sequences have no row, unless `--enable-mixed-chunk` is set. They wait for BUDGET, held by the
sequence with the most prompt tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from service.attach.inside.sglang.live import Live, PlannedRow
from telemetry.facts.reasons import WaitReason
from telemetry.facts.step_parts import Skip

_MOST_GRAMMARS = 64


def skips(
    scheduler: Any,
    plan: Any,
    rows: Sequence[PlannedRow],
    lives: Mapping[str, Live],
    budget_tokens: int,
) -> tuple[Skip, ...]:
    """The running sequences without a row, those that wait for their grammar, and last the head of
    the queue."""
    found: list[Skip] = []
    if rows and rows[0].is_prefill and plan.running_batch is not plan.batch_to_run:
        found += _left_out(plan.running_batch.reqs, rows, lives)
    for request in islice(scheduler.grammar_manager.grammar_queue, _MOST_GRAMMARS):
        if (live := lives.get(request.rid)) is not None:
            found.append(Skip(live.seq_id, WaitReason.GRAMMAR, None))
    if scheduler.waiting_queue:
        reason = _reason_of_head(scheduler, plan, rows, budget_tokens)
        live = lives.get(scheduler.waiting_queue[0].rid)
        if live is not None and reason is not None:
            found.append(Skip(live.seq_id, reason, None))
    return tuple(found)


def _left_out(
    running: Sequence[Any], rows: Sequence[PlannedRow], lives: Mapping[str, Live]
) -> Iterator[Skip]:
    holder = max(rows, key=_prompt_tokens).live.seq_id
    planned = {row.live.seq_id for row in rows}
    for request in running:
        live = lives.get(request.rid)
        if live is not None and live.seq_id not in planned and request.finished_reason is None:
            yield Skip(live.seq_id, WaitReason.BUDGET, holder)


def _prompt_tokens(row: PlannedRow) -> int:
    return row.tokens if row.is_prefill else 0


def _reason_of_head(
    scheduler: Any, plan: Any, rows: Sequence[PlannedRow], budget_tokens: int
) -> WaitReason | None:
    """Why the head of the queue waits, as the scheduler's own loop decides. None: another limit
    binds that is not one of ours, such as a delay of prompts that an operator set."""
    running = plan.running_batch
    slots = len(running.reqs)
    if running is not plan.batch_to_run:
        slots += len(rows)
    if slots >= scheduler.max_running_requests:
        return WaitReason.SEQS
    prompt_tokens = sum(map(_prompt_tokens, rows))
    if prompt_tokens and (
        scheduler.chunked_req is not None or prompt_tokens + scheduler.page_size > budget_tokens
    ):
        return WaitReason.BUDGET
    return WaitReason.KV if running.batch_is_full else None
