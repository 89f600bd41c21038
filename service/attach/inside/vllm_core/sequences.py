"""Facts of a sequence of vLLM's engine core on its way into the batch."""

from __future__ import annotations

from service.attach.inside.vllm_core.live import Live
from telemetry.facts.engine_records import SequenceAdmitted, SequenceQueued

TENANT = "default"  # vLLM knows no tenants


def sequence_queued(
    live: Live,
    at_ns: int,
    step_id: int,
    blocks: tuple[int, ...] | None,
    received_ns: int | None,
) -> SequenceQueued:
    request = live.request
    return SequenceQueued(
        seq_id=live.seq_id,
        at_ns=at_ns,
        step_id=step_id,
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        tenant=TENANT,
        priority=request.priority,
        constrained=live.awaits_grammar,
        blocks=blocks,
        received_ns=received_ns,
    )


def sequence_admitted(live: Live, at_ns: int, step_id: int, tokens: int) -> SequenceAdmitted:
    """vLLM has planned the sequence's next `tokens`, and counts them as computed. Tokens that came
    from another machine or store are those of our CPU offload."""
    request = live.request
    stats = request.prefill_stats  # None once the prompt was computed
    return SequenceAdmitted(
        seq_id=live.seq_id,
        at_ns=at_ns,
        step_id=step_id,
        known_tokens=request.num_tokens,
        hit_tokens=request.num_computed_tokens - tokens,
        host_tokens=0 if stats is None else stats.num_external_cached_tokens,
        ghost_tokens=0,
    )
