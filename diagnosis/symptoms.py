"""The symptoms that are told apart, and what a finding holds."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Symptom(StrEnum):
    """The classes of findings. A healthy server has none."""

    QUEUE_OVERLOAD = "queue_overload"  # more work comes than the engine can do
    PREFILL_INTERFERENCE = "prefill_interference"  # others' prompts make tokens late
    LONG_PROMPTS = "long_prompts"  # prompts became longer; their own first tokens are late
    PREFIX_CACHE_COLD = "prefix_cache_cold"  # prompts are computed again that were cached
    KV_EXHAUSTION = "kv_exhaustion"  # admission waits for blocks
    KV_THRASH = "kv_thrash"  # running sequences lose their blocks, and start again
    OVERSIZED_BATCH = "oversized_batch"  # so many decode together that all are slow
    MEMORY_BANDWIDTH = (
        "memory_bandwidth"  # steps are slow although the engine has its CPU: contended memory
    )
    THROTTLED = "throttled"  # the processor runs less: a quota, or a lower clock
    HOST_STALL = "host_stall"  # the loop stands still between steps
    CPU_STARVATION = "cpu_starvation"  # something else has the CPU
    INGEST_BACKLOG = "ingest_backlog"  # requests are late before they are queued
    GRAMMAR_COST = "grammar_cost"  # masks and grammars take the time
    INVALID_OUTPUT = "invalid_output"  # constrained answers do not obey their constraint
    SLOW_CLIENT = "slow_client"  # clients read more slowly than the server sends
    CANCELLATION_LEAK = (
        "cancellation_leak"  # sequences are computed after their client disconnected
    )
    UNFAIRNESS = "unfairness"  # one tenant's work delays the others'
    HEAVY_SAMPLING = "heavy_sampling"  # sampling takes the time
    OUT_OF_MEMORY = "out_of_memory"  # steps fail for want of memory
    ENGINE_HUNG = "engine_hung"  # the engine's process exists and does not respond
    STEP_FAILURE = "step_failure"  # steps fail, and not for want of memory
    LOAD_FAILURE = "load_failure"  # the model does not load
    BUDGET_TOO_SMALL = "budget_too_small"  # steps are too small for their fixed cost
    TELEMETRY_DEGRADED = "telemetry_degraded"  # the record itself is incomplete


LATENCY = tuple(
    symptom
    for symptom in Symptom
    if symptom
    not in (
        Symptom.INVALID_OUTPUT,
        Symptom.OUT_OF_MEMORY,
        Symptom.ENGINE_HUNG,
        Symptom.STEP_FAILURE,
        Symptom.LOAD_FAILURE,
        Symptom.TELEMETRY_DEGRADED,
    )
)
"""Those that delay requests; the others are counted (`verdicts.checks`)."""


class Evidence(msgspec.Struct, frozen=True):
    """One measured quantity behind a finding. Harm is in ms of requests' time."""

    name: str
    value: float
    unit: str


class Exclusion(msgspec.Struct, frozen=True):
    """A symptom that looks alike, and the measurement that rules it out."""

    symptom: Symptom
    reason: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of lost time in the window, with its evidence and its runbook.

    `harm_ms` is requests' time lost to it since `onset_ns`, `share` its part of all lost time,
    `confidence` 0 to 1. `culprits` and `victims` are request ids (or tenants where the cause is
    one), worst first; `exemplars` are trace ids of victims. `stacks` are those of the threads of a
    hung process. A fault that recurs has had `blows` so far, one in `period_s`, and is held between
    them.
    """

    symptom: Symptom
    confidence: float
    claim: str
    harm_ms: float
    evidence: tuple[Evidence, ...]
    culprits: tuple[str, ...] = ()
    victims: tuple[str, ...] = ()
    exemplars: tuple[str, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    share: float = 1.0
    onset_ns: int | None = None
    runbook: str = ""
    stacks: tuple[str, ...] = ()
    period_s: float | None = None
    blows: int = 0
