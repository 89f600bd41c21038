"""From the fact of a step to its row of the table."""

from __future__ import annotations

from diagnosis.detection.gpus import device_of
from diagnosis.detection.holders import Held
from diagnosis.detection.steps import StepRow
from telemetry.costs.step_load import load_of_step
from telemetry.facts.engine_records import StepRecorded


def row_of(
    step: StepRecorded,
    turn_ns: int,
    held: Held,
    *,
    paused: int,
    zombie_rows: int,
    recompute_tokens: int,
    long_tokens: int,
) -> StepRow:
    """What is known of its sequences comes with it."""
    load, device = load_of_step(step), device_of(step)
    since_ns = step.committed_ns - turn_ns
    forward_ns = max(0, step.sample_ns - max(step.forward_ns, since_ns))
    score_ns = min(step.score_ns, forward_ns, turn_ns)
    forward_ns -= score_ns
    sample_ns = max(0, step.collected_ns - max(step.sample_ns, since_ns))
    mask_ns = min(step.mask_ns, sample_ns)
    forward_ns = min(forward_ns, turn_ns - score_ns)
    return StepRow(
        end_ns=step.committed_ns,
        turn_ns=turn_ns,
        forward_ns=forward_ns,
        sample_ns=sample_ns - mask_ns,
        mask_ns=mask_ns,
        host_ns=max(0, turn_ns - forward_ns - score_ns - sample_ns),
        prompt_tokens=load.prompt_tokens,
        pairs=load.pairs,
        decode_tokens=load.decode_tokens,
        context_tokens=load.context_tokens,
        interaction=load.interaction,
        sampled_rows=load.sampled_rows,
        prompt_rows=len(step.rows) - load.decode_rows,
        decode_rows=load.decode_rows,
        running=step.running,
        paused=paused,
        zombie_rows=zombie_rows,
        recompute_tokens=recompute_tokens,
        budget_tokens=step.budget_tokens,
        timed=step.target_ns is not None,
        long_tokens=long_tokens,
        blocks_total=step.blocks_total,
        slow_blocks=held.slow_blocks,
        zombie_blocks=held.zombie_blocks,
        short=held.short,
        slow_recompute_tokens=held.slow_recompute_tokens,
        device_ns=device.device_ns,
        bubble_ns=device.bubble_ns,
        skew_ns=device.skew_ns,
        slowest_rank=device.slowest_rank,
        score_ns=score_ns,
    )
