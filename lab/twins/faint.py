"""Twins of faint faults: the same classes, so rare or so short that a mean hardly moves."""

from __future__ import annotations

from lab.twins.fault import Mechanisms
from lab.twins.faults import faint_faults as faint
from lab.twins.twin import Twin, simulate_twin

FAINT: dict[str, Mechanisms] = {
    "host_stall": faint.STALLS,
    "cpu_starvation": faint.THIEF,
    "throttled": faint.QUOTA,
    "memory_bandwidth": faint.SCANS,
    "prefill_interference": faint.INTERFERENCE,
    "long_prompts": faint.LONG_PROMPTS,
    "slow_client": faint.SLOW_CLIENT,
    "unfairness": faint.UNFAIRNESS,
    "queue_overload": faint.QUEUE,
    "prefix_cache_cold": faint.COLD_CACHE,
    "ingest_backlog": faint.INGEST,
    "grammar_cost": faint.GRAMMAR,
    "heavy_sampling": faint.SAMPLING,
}


def build_faint(name: str, seed: int, mechanism: str) -> Twin:
    """The twin of that class. Raises KeyError."""
    return simulate_twin(name, f"faint/{mechanism}", seed, [FAINT[name][mechanism]])
