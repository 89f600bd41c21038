"""The record of a step of SGLang's scheduler, made when its outcome is known."""

from __future__ import annotations

from typing import Any, NamedTuple

from service.attach.inside.sglang.live import Flight
from telemetry.facts.engine_records import EngineIdled, Row, StepRecorded


class Gauges(NamedTuple):
    """Pages of the KV pool. Those that are cached only may be taken for something else."""

    blocks_used: int
    blocks_cached: int
    blocks_total: int


def gauges(scheduler: Any) -> Gauges:
    stats, page = scheduler.pool_stats_observer.get_pool_stats(), scheduler.page_size
    capacity = stats.full_capacity or scheduler.max_total_num_tokens
    used = min(capacity, max(0, stats.full_num_used))
    return Gauges(-(-used // page), stats.full_evictable_size // page, capacity // page)


def engine_idled(scheduler: Any, at_ns: int) -> EngineIdled:
    return EngineIdled(at_ns, 0, 0, *gauges(scheduler))


def step_recorded(
    flight: Flight,
    scheduler: Any,
    rows: tuple[Row, ...],
    committed_ns: int,
    running: int,
    waiting: int,
    waiting_tokens: int,
) -> StepRecorded:
    """From the launch until the tokens are on the host is one piece: where the model runs and where
    it samples cannot be told apart here."""
    now = gauges(scheduler)
    collected_ns = max(flight.collected_ns, flight.launched_ns)
    return StepRecorded(  # by position, which takes a quarter of the time that names take
        flight.step_id,
        flight.begin_ns,
        flight.planned_ns,
        flight.launched_ns,
        flight.launched_ns,
        collected_ns,
        collected_ns,
        committed_ns,
        rows,
        flight.skips,
        flight.preempted,
        flight.budget_tokens,
        running,
        waiting,
        waiting_tokens,
        now.blocks_used,
        now.blocks_cached,
        now.blocks_total,
    )
