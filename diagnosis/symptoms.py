"""The symptoms that are told apart, and what a finding holds."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from telemetry.facts.engine_flags import EngineLimit


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
    ADAPTER_CHURN = "adapter_churn"  # requests wait for adapters that are loaded again and again
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
    SLO_MISSED = "slo_missed"  # a class of requests misses its objective


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
        Symptom.SLO_MISSED,
    )
)
"""The symptoms that delay requests; the others are counted (`verdicts.checks`, `promises`)."""


class MissForm(StrEnum):
    """What kind of miss it is, which says what could help."""

    IMPOSSIBLE = "impossible"  # even alone on this machine they would be late
    ONE_CLASS = "one_class"  # the other classes are served as promised
    MISCONFIGURED = "misconfigured"  # the engine could do it, and a setting keeps it from it
    AT_ITS_LIMIT = "at_its_limit"  # more work comes than the engine can do in time
    OUTSIDE = "outside"  # neither settings nor demand make them late


class Evidence(msgspec.Struct, frozen=True):
    """One measured quantity behind a finding; `diagnosis.evidence` has them all. `value` is None
    where it could not be measured in this window."""

    name: str
    value: float | None
    unit: str

    @property
    def text(self) -> str:
        """Value and unit, for a reader."""
        return "not measured" if self.value is None else f"{self.value:g} {self.unit}"


class Exclusion(msgspec.Struct, frozen=True):
    """A symptom that looks alike, and the measurement that rules it out."""

    symptom: Symptom
    reason: str


class Abstention(msgspec.Struct, frozen=True):
    """A symptom that is not judged, since what it needs is not observed of this engine. `still` is
    what is seen of it nevertheless."""

    symptom: Symptom
    needs: tuple[str, ...]
    still: str = ""

    @property
    def text(self) -> str:
        """In one line."""
        still = f"; still seen: {self.still}" if self.still else ""
        return f"{self.symptom.value} (needs {' and '.join(self.needs)}{still})"


class Link(msgspec.Struct, frozen=True):
    """One link of a chain of causes. `harm_ms` is requests' time lost to it and to what it led to;
    `evidence` shows that the link before led to it."""

    symptom: Symptom
    harm_ms: float
    evidence: tuple[Evidence, ...] = ()


class MissedPromise(msgspec.Struct, frozen=True, kw_only=True):
    """One SLO class that misses its objective, over the last 30 seconds.

    Of `requests` that are known to be good or bad, `missed` missed: `late_first_tokens` by TTFT,
    `slow_tokens` by ITL, `unserved` were refused or failed. `burn` and `burn_5min` are the share
    missed over the share that may miss. The p95 of TTFT counts those that still wait as long as
    they have; `worst_gap_p95_ms` is over the longest gap of each request. None: not measured.
    `parts` is where the time of late first tokens and of late gaps went, in ms, largest first.
    `setting` is the limit that binds, empty where none does. `utilisation` is the demand over what
    the engine can do at the fitted cost with the best batch.
    """

    slo_class: str
    form: MissForm
    objective: float
    requests: int
    missed: int
    late_first_tokens: int
    slow_tokens: int
    unserved: int
    burn: float
    burn_5min: float
    ttft_target_ms: float
    ttft_p95_ms: float | None
    itl_target_ms: float
    worst_gap_p95_ms: float | None
    parts: dict[str, float]
    setting: str = ""
    utilisation: float | None = None
    since_ns: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of lost time in the window, with its evidence and its runbook.

    `harm_ms` is requests' time lost to it since `onset_ns`, `share` its part of all lost time,
    `confidence` 0 to 1. `culprits` and `victims` are request ids (or tenants where the cause is
    one), worst first; `exemplars` are trace ids of victims. `stacks` are those of the threads of a
    hung process. A fault that recurs has had `blows` so far, one in `period_s`, and is held between
    them. `promises` are the classes that miss their SLO, the worst first, of `slo_missed`;
    `answer` is what a replay of the last minutes says would meet them, where it has been asked.
    Where the harm came by way of other symptoms, `chain` has these, this cause first. `limits` are
    those of an attached engine that bear on it, under its own names.
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
    promises: tuple[MissedPromise, ...] = ()
    answer: str = ""
    period_s: float | None = None
    blows: int = 0
    chain: tuple[Link, ...] = ()
    limits: tuple[EngineLimit, ...] = ()

    @property
    def chain_text(self) -> str:
        """The chain in one line; empty without one."""
        return " -> ".join(f"{one.symptom.value} {one.harm_ms:,.0f} ms" for one in self.chain)
