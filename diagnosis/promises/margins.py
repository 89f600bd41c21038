"""What requests need at the fitted cost of a step: one alone, and all that come.

    alone        base + prompt tokens * a + pairs * p: one step with nothing else in it
    utilisation  requests a second * (their prompts + their tokens * (row + base / best batch))

The best batch is as large as the ITL target and the cache allow, whatever `--max-num-seqs` is: it
says what the engine could do, and not what it is set to do. Where blocks are what requests wait
for, the cache counts as unlimited, because its size is a setting too.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagnosis.detection.counts import Counts
from diagnosis.promises.thresholds import LARGEST_BATCH
from telemetry.costs.step_load import attention_pairs
from telemetry.facts.engine_records import StepCostSet


def prompt_ns(cost: StepCostSet, tokens: int) -> float:
    """The time of a prompt in one step, without the step's fixed cost."""
    return tokens * cost.prefill_token_ns + attention_pairs(tokens, 0) * cost.pair_ns


def alone_ns(cost: StepCostSet, tokens: int) -> float:
    """The least time to the first token of a prompt: one step with nothing else in it."""
    return cost.base_ns + cost.mixed_ns + prompt_ns(cost, tokens)


def gap_alone_ns(cost: StepCostSet, context: float = 0.0) -> float:
    """The least gap between two tokens: a step with one row."""
    return cost.base_ns + cost.decode_row_ns + context * cost.context_token_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What came in a stretch of time: sequences a second, and the mean of each. Of their prompts
    this engine computes `computed_share`."""

    sequences_per_s: float
    prompt_tokens: float
    computed_share: float
    output_tokens: float

    @classmethod
    def of(cls, counts: Counts, seconds: float) -> Demand:
        came = len(counts.prompt_lengths)
        return cls(
            sequences_per_s=came / max(1e-9, seconds),
            prompt_tokens=counts.prompt_tokens,
            computed_share=1 - counts.hit_share - counts.received_share,
            output_tokens=counts.output_tokens,
        )


def best_batch(
    cost: StepCostSet, demand: Demand, itl_target_ns: float, cache_tokens: float
) -> float:
    """So many rows may decode together: within the ITL target, and within the cache."""
    in_time = (itl_target_ns - cost.base_ns) / max(1.0, _row_ns(cost, demand))
    in_cache = cache_tokens / max(1.0, demand.prompt_tokens + demand.output_tokens)
    return max(1.0, min(in_time, in_cache, LARGEST_BATCH))


def utilisation(
    cost: StepCostSet, demand: Demand, itl_target_ns: float, cache_tokens: float
) -> float | None:
    """The demand over what the engine can do; None before an answer has ended."""
    if not demand.output_tokens:
        return None
    batch = best_batch(cost, demand, itl_target_ns, cache_tokens)
    computed = round(demand.prompt_tokens * demand.computed_share)
    token_ns = _row_ns(cost, demand) + cost.base_ns / batch
    each_ns = prompt_ns(cost, computed) + demand.output_tokens * token_ns
    return demand.sequences_per_s * each_ns / 1e9


def _row_ns(cost: StepCostSet, demand: Demand) -> float:
    """One row of a decode, at the mean context."""
    context = demand.prompt_tokens + demand.output_tokens / 2
    return cost.decode_row_ns + context * cost.context_token_ns
