"""Twins with two things wrong at once, chosen so that one may hide the other."""

from __future__ import annotations

from lab.twins.faults.load_faults import MILD_OVERLOAD
from lab.twins.registry import FAULTS, TWINS
from lab.twins.twin import Twin, simulate_twin

COMPOUNDS: tuple[tuple[str, str], ...] = (
    ("queue_overload", "host_stall"),
    ("prefix_cache_cold", "queue_overload"),
    ("host_stall", "prefill_interference"),
    ("memory_bandwidth", "queue_overload"),
    ("prefill_interference", "unfairness"),
    ("cancellation_leak", "queue_overload"),
    ("grammar_cost", "slow_client"),
    ("memory_bandwidth", "host_stall"),
    ("cpu_starvation", "queue_overload"),
    ("slow_client", "queue_overload"),
    ("ingest_backlog", "memory_bandwidth"),
    ("throttled", "prefill_interference"),
    ("heavy_sampling", "host_stall"),
    ("kv_exhaustion", "queue_overload"),
)
"""Pairs of names; the second fault begins up to five seconds after the first. Long prompts of one
tenant are not paired with unfairness: a few of them cost almost nothing beside a flood."""


def build_compound(names: tuple[str, str], seed: int) -> Twin:
    """Both faults in one run. Raises KeyError."""
    mechanisms = [TWINS[name][0] for name in names]
    faults = [
        MILD_OVERLOAD if name == "queue_overload" else FAULTS[name][mechanism]
        for name, mechanism in zip(names, mechanisms, strict=True)
    ]
    return simulate_twin("+".join(names), "+".join(mechanisms), seed, faults)
