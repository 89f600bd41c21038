"""Every twin by name: one simulated run for each class, mechanism and seed."""

from __future__ import annotations

from lab.twins.fault import Mechanisms
from lab.twins.faults.adapter_faults import ADAPTERS
from lab.twins.faults.client_faults import INGEST, LEAK, SLOW_CLIENT
from lab.twins.faults.failure_faults import (
    DEGRADED,
    ENGINE_HUNG,
    LOAD_FAILURE,
    OUT_OF_MEMORY,
    STEP_FAILURE,
)
from lab.twins.faults.gpu_faults import GPU_FAULTS
from lab.twins.faults.limit_faults import EXHAUSTION, OVERSIZED, SMALL_BUDGET, THRASH
from lab.twins.faults.load_faults import (
    COLD_CACHE,
    INTERFERENCE,
    LONG_PROMPTS,
    OVERLOAD,
    UNFAIRNESS,
)
from lab.twins.faults.output_faults import GRAMMAR, INVALID, SAMPLING
from lab.twins.faults.promise_faults import PROMISES
from lab.twins.faults.slow_faults import BANDWIDTH, STALLED, STARVED, THROTTLED
from lab.twins.healthy import BUSY, LIGHT, SURGES, SWING
from lab.twins.twin import Twin, simulate_twin, simulate_without_faults
from telemetry.facts.records import Fact

FAULTS: dict[str, Mechanisms] = {
    "healthy_light": LIGHT,
    "healthy_busy": BUSY,
    "healthy_surges": SURGES,
    "healthy_swing": SWING,
    "queue_overload": OVERLOAD,
    "prefill_interference": INTERFERENCE,
    "long_prompts": LONG_PROMPTS,
    "prefix_cache_cold": COLD_CACHE,
    "kv_exhaustion": EXHAUSTION,
    "kv_thrash": THRASH,
    "oversized_batch": OVERSIZED,
    "memory_bandwidth": BANDWIDTH,
    "throttled": THROTTLED,
    "host_stall": STALLED,
    "cpu_starvation": STARVED,
    "ingest_backlog": INGEST,
    "grammar_cost": GRAMMAR,
    "adapter_churn": ADAPTERS,
    "invalid_output": INVALID,
    "slow_client": SLOW_CLIENT,
    "cancellation_leak": LEAK,
    "unfairness": UNFAIRNESS,
    "heavy_sampling": SAMPLING,
    "out_of_memory": OUT_OF_MEMORY,
    "engine_hung": ENGINE_HUNG,
    "step_failure": STEP_FAILURE,
    "load_failure": LOAD_FAILURE,
    "budget_too_small": SMALL_BUDGET,
    "telemetry_degraded": DEGRADED,
    "slo_missed": PROMISES,
}
TWINS: dict[str, tuple[str, ...]] = {name: tuple(known) for name, known in FAULTS.items()}
"""Mechanisms by name: the first is for development, the others are held out for the test."""


def build_gpu_twin(name: str, seed: int) -> Twin:
    """A twin with GPUs. Raises KeyError."""
    known = GPU_FAULTS[name]
    return simulate_twin(known.symptom, f"gpu/{name}", seed, [known.fault])


def build_twin(name: str, seed: int, mechanism: str | None = None) -> Twin:
    """The twin of that name, by its first mechanism if none is given. Raises KeyError."""
    mechanism = mechanism or TWINS[name][0]
    return simulate_twin(name, mechanism, seed, [FAULTS[name][mechanism]])


def build_clean(name: str, seed: int, mechanism: str | None = None) -> list[Fact]:
    """Facts of the twin's server and traffic without the fault. Raises KeyError."""
    mechanism = mechanism or TWINS[name][0]
    return simulate_without_faults(name, mechanism, seed, [FAULTS[name][mechanism]])
