"""How many prompt tokens a step may compute beside its decodes.

Without a target for the inter-token latency (ITL) the budget is fixed. With one it
follows from the fitted cost of a step: the largest chunk whose predicted step still meets
the target, at least one block, so that prefill always progresses. This is the dynamic
chunk sizing of TensorRT-LLM, with a cost that is measured on this machine and refitted as
it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.inbox import SetStepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """Decode rows of a step, and the tokens that they attend to."""

    decodes: int = 0
    context_tokens: int = 0


def prefill_allowance(
    cost: SetStepCost | None,
    target_ns: int | None,
    load: StepLoad,
    budget_tokens: int,
    block_tokens: int,
) -> int:
    """Prompt tokens for this step, at most what `budget_tokens` leaves beside the decodes.

    The fixed budget holds where no decode waits for the step, and without a fitted cost or a
    target.
    """
    left = budget_tokens - load.decodes
    if target_ns is None or cost is None or load.decodes == 0:
        return left
    spare_ns = target_ns - cost.decode_step_ns(load.decodes, load.context_tokens)
    affordable = spare_ns // max(1, cost.prefill_token_ns) if spare_ns > 0 else 0
    whole_blocks = affordable // block_tokens * block_tokens
    return min(left, max(block_tokens, whole_blocks))
