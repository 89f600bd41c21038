"""The load of a step, from its plan."""

from __future__ import annotations

from service.engine.plan import Plan
from telemetry.costs.step_load import StepLoad, attention_pairs


def load_of_plan(plan: Plan) -> StepLoad:
    """The load that `load_of_step` gives for the recorded step of this plan."""
    decode_rows = len(plan.decodes)
    prompt_tokens, pairs, sampled_rows, scored_rows = 0, 0.0, decode_rows, 0
    for chunk in plan.prefills:
        tokens = len(chunk.tokens)
        prompt_tokens += tokens
        pairs += attention_pairs(tokens, chunk.start)
        sampled_rows += chunk.samples
        scored_rows += chunk.reads.scored_rows
    decode_tokens, context_tokens = decode_rows, 0
    for row in plan.decodes:
        decode_tokens += len(row.drafts)
        context_tokens += row.start
    return StepLoad(
        prompt_tokens, pairs, decode_tokens, decode_rows, context_tokens, sampled_rows,
        scored_rows=scored_rows,
    )  # fmt: skip
