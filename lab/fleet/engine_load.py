"""The load of a simulated engine, read from its scheduler. A node in production works the same
numbers out from the facts of its engine (`service.composition.node.loads`)."""

from __future__ import annotations

from itertools import islice

import msgspec

from service.engine.admission import Limits
from service.engine.kv.blocks import BlockPool
from service.engine.sequences.sequence_table import SequenceTable

_MATCHED = 16
"""Waiting requests that are looked up in the prefix cache."""


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Between two steps. `prompt_tokens` are those to be computed of waiting and begun prompts,
    less what the prefix cache has of the first waiting ones; `context_tokens` are what
    `decode_rows` attend to. The last steps took `drift` times what the fit predicts. `target_ns` is
    the tightest inter-token target that bounds steps; None: the budget of tokens does."""

    running: int
    waiting: int
    prompt_tokens: int
    decode_rows: int
    context_tokens: int
    blocks_used: int
    blocks_total: int
    max_seqs: int
    budget_tokens: int
    target_ns: int | None
    drift: float


def load_of(
    table: SequenceTable, pool: BlockPool, limits: Limits, drift: float, now_ns: int
) -> EngineLoad:
    """A walk over the sequences that run, and a bounded number of those that wait. `drift` is that
    of the step's cost (`service.engine.budget.StepCost`)."""
    prompt_tokens, rows, context, target_ns = table.queue.tokens, 0, 0, limits.itl_target_ns
    for request in islice(table.queue, _MATCHED):
        match = table.blocks.match(request, now_ns)
        held_blocks = len(match.blocks) + len(match.host_digests)
        prompt_tokens -= held_blocks * limits.block_tokens
    for request in table.running:
        if request.in_prefill:
            prompt_tokens += request.prefill_tokens - request.computed_tokens
        else:
            rows += 1
            context += request.computed_tokens
        own_ns = request.submit.itl_target_ns
        if limits.itl_target_ns is None and own_ns is not None:
            target_ns = own_ns if target_ns is None else min(target_ns, own_ns)
    bounded = limits.chunked_prefill and (limits.auto_budget or limits.itl_target_ns is not None)
    return EngineLoad(
        running=len(table.running),
        waiting=len(table.queue),
        prompt_tokens=prompt_tokens,
        decode_rows=rows,
        context_tokens=context,
        blocks_used=pool.used,
        blocks_total=pool.total,
        max_seqs=limits.max_seqs,
        budget_tokens=limits.step_tokens,
        target_ns=target_ns if bounded else None,
        drift=drift,
    )
