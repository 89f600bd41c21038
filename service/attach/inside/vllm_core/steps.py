"""The record of a step of vLLM's engine core, made when its outcome is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from service.attach.inside.block_aliases import BlockAliases
from service.attach.inside.vllm_core.live import Flight, committed_row
from telemetry.facts.engine_records import EngineIdled, StepRecorded
from telemetry.facts.step_parts import BlocksSealed


class Gauges(NamedTuple):
    """`blocks_used` hold tokens of live sequences. `blocks_cached` are free and hold tokens that
    may be used again: each sequence's last block, which is not full, may be missing from it."""

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int


def gauges(scheduler: Any) -> Gauges:
    pool = scheduler.kv_cache_manager.block_pool
    running, waiting = scheduler.get_request_counts()
    total, free = pool.num_gpu_blocks - 1, pool.get_num_free_blocks()  # one block stays empty
    used = total - free
    cached = min(free, max(0, len(pool.cached_block_hash_to_block) - used))
    return Gauges(running, waiting, used, cached, total)


def engine_idled(scheduler: Any, at_ns: int) -> EngineIdled:
    return EngineIdled(at_ns, *gauges(scheduler))


def sampled_tokens(outputs: Mapping[int, Any]) -> dict[str, int]:
    """How many new tokens each sequence got that has an outcome; the tokens are not looked at."""
    return {
        one.request_id: len(one.new_token_ids)
        for client in outputs.values()
        for one in client.outputs
    }


def step_recorded(
    flight: Flight,
    scheduler: Any,
    collected_ns: int,
    committed_ns: int,
    sampled: Mapping[str, int],
    waiting_tokens: int,
    sealed: tuple[BlocksSealed, ...],
) -> StepRecorded:
    """What passed between plan and outcome is one piece: the model, sampling and the way to and
    from the workers cannot be told apart here."""
    now = gauges(scheduler)
    planned_ns = flight.planned_ns
    return StepRecorded(  # by position, which takes a quarter of the time that names take
        flight.step_id,
        flight.begin_ns,
        planned_ns,
        planned_ns,
        planned_ns,
        collected_ns,
        collected_ns,
        committed_ns,
        tuple([committed_row(row, sampled) for row in flight.rows]),
        flight.skips,
        flight.preempted,
        flight.budget_tokens,
        now.running,
        now.waiting,
        waiting_tokens,
        now.blocks_used,
        now.blocks_cached,
        now.blocks_total,
        0,
        0,
        0,
        sealed,
    )


def blocks_sealed(
    flight: Flight, block_tokens: int, aliases: BlockAliases
) -> tuple[BlocksSealed, ...]:
    """The blocks that the rows of a step filled and that have no recorded alias yet."""
    if not block_tokens:
        return ()
    full = [
        (row[0], row[2] + row[3]) for row in flight.rows if row[2] + row[3] >= row[0].seal_tokens
    ]
    found = []
    for live, tokens in full:
        if live.has_ended:
            continue
        new = live.request.block_hashes[live.told_blocks : tokens // block_tokens]
        if new:
            found.append(BlocksSealed(live.seq_id, live.told_blocks, aliases.of(new)))
            live.told_blocks += len(new)
            live.seal_tokens = (live.told_blocks + 1) * block_tokens
    return tuple(found)
