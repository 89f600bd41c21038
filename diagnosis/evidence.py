"""What is measured: every quantity that a finding may show, with its unit and its meaning.

`Measurement` is what attribution takes of the window that is judged, each time and all of them;
`Counted` is what checks count. A quantity that could not be taken in this window is None, and a
finding says so. One that is not listed here cannot be named by a rule.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from diagnosis.symptoms import Evidence


class Unit(StrEnum):
    """Harm is in ms of requests' time."""

    MS = "ms"
    TOKENS = "tokens"
    PER_S = "1/s"
    EACH = "each"
    ROWS = "rows"
    TIMES = "times"
    SHARE = "of 1"
    REQUESTS = "requests"
    SEQUENCES = "sequences"
    ENGINES = "engines"
    STEPS = "steps"
    FACTS = "facts"
    PARTS = "parts"
    ATTEMPTS = "attempts"
    MHZ = "MHz"
    CELSIUS = "°C"
    WATT = "W"
    GIB = "GiB"
    PERCENT = "%"
    ERRORS = "errors"
    ANSWERS = "answers"
    TENANTS = "tenants"
    SECONDS = "s"
    RECORDS = "records"


class Quantity(StrEnum):
    """The value is its name in JSON."""

    _value_: str
    unit: Unit
    meaning: str

    def __new__(cls, name: str, unit: Unit, meaning: str) -> Self:
        found = str.__new__(cls, name)
        found._value_ = name
        found.unit, found.meaning = unit, meaning
        return found

    @classmethod
    def named(cls, name: str) -> Self:
        """Raises KeyError for a name that is not listed."""
        return {one.value: one for one in cls}[name]

    def of(self, value: float | None) -> Evidence:
        """The value as evidence; None: not measured in this window."""
        return Evidence(self.value, None if value is None else round(value, 3), self.unit.value)

    def usual_of(self, value: float | None) -> Evidence:
        """The same, of the time that is compared with."""
        found = self.of(value)
        return Evidence(f"usual_{found.name}", found.value, found.unit)


class Measurement(Quantity):
    """What is measured of the window that is judged. *usual* is of the baseline, and not measured
    before there is one."""

    # where requests were late
    INGEST = "ingest", Unit.MS, "requests' time before the queue, beyond the baseline"
    DELIVER = "deliver", Unit.MS, "requests' time after their last token, beyond the baseline"
    WAITED = "waited", Unit.MS, "requests' time in the queue"
    EXPECTED_WAIT = "expected_wait", Unit.MS, "in the queue, of who comes now: Little's law"
    WAIT_TARGET = "wait_target", Unit.MS, "to the first token, that nine in ten or more may take"
    TURNED_AWAY = "turned_away", Unit.REQUESTS, "refused because the queue is too long"
    WAIT_BUDGET = "wait_budget", Unit.MS, "of it behind a full token budget"
    WAIT_SEQS = "wait_seqs", Unit.MS, "of it for a slot in the batch"
    WAIT_KV = "wait_kv", Unit.MS, "of it for blocks of the KV cache"
    WAIT_HEAD_OF_LINE = "wait_head_of_line", Unit.MS, "of it behind a head without a reason"
    WAIT_POLICY = "wait_policy", Unit.MS, "of it by the order or a tenant's limit"
    WAIT_GRAMMAR = "wait_grammar", Unit.MS, "of it for a grammar that is compiled"
    WAIT_ADAPTER = "wait_adapter", Unit.MS, "of it for the weights of an adapter"
    WAIT_CLIENT_PAUSE = "wait_client_pause", Unit.MS, "of it behind a client that does not read"
    WAIT_PREEMPTED = "wait_preempted", Unit.MS, "of it by requests that lost their blocks"
    WAIT_REMOTE_KV = "wait_remote_kv", Unit.MS, "of it for KV blocks from elsewhere"
    # the gateway
    INGEST_WORK = "ingest_work", Unit.MS, "parsing and tokenizing, beyond the baseline"
    WAVE = "wave", Unit.MS, "in the queue, of requests that the gateway had held up"
    GATEWAY_STOOD = "gateway_stood", Unit.MS, "pauses of the gateway's process"
    # the engine's time
    SLOW = "slow", Unit.MS, "forward passes beyond their predicted length"
    HOST = "host", Unit.MS, "the loop's time around the forward passes, beyond the baseline"
    SLOW_FACTOR = "slow_factor", Unit.TIMES, "length of forward passes over the predicted one"
    SLOW_DECODES = "slow_decodes", Unit.TIMES, "the same of steps that only decode"
    SLOW_PROMPTS = "slow_prompts", Unit.TIMES, "the same of what prompts add to a step"
    RUN_DELAY = "run_delay", Unit.MS, "the engine's thread was ready without a CPU, beyond usual"
    NOT_RUNNING = "not_running", Unit.MS, "it neither ran nor was ready, beyond usual"
    THROTTLED = "throttled", Unit.MS, "stopped by a CPU quota (cgroup)"
    MASK = "mask", Unit.MS, "masks of constrained rows"
    SAMPLE = "sample", Unit.MS, "sampling beyond its predicted length"
    CO_PREFILL = "co_prefill", Unit.MS, "decoding requests' time in others' prompts"
    OWN_PREFILL = "own_prefill", Unit.MS, "requests' time in their own prompts"
    CO_DECODE = "co_decode", Unit.MS, "decoding requests' time in others' decode rows"
    ROWS_EACH = "rows_each", Unit.EACH, "rows of a step"
    USUAL_ROWS_EACH = "usual_rows_each", Unit.EACH, "the same, usually"
    ZOMBIE_ROWS = "zombie_rows", Unit.ROWS, "computed for clients that had disconnected"
    EXTRA_CHUNKS = "extra_chunks", Unit.ROWS, "pieces of prompts beyond the baseline"
    FULL_STEPS_SHARE = "full_steps_share", Unit.SHARE, "of the time in steps that fill the budget"
    BUDGET_TOKENS = "budget_tokens", Unit.TOKENS, "configured budget of a step"
    # the device; not measured without a GPU
    GPU_CLOCK = "gpu_clock", Unit.MHZ, "of the streaming multiprocessors, while it works"
    USUAL_GPU_CLOCK = "usual_gpu_clock", Unit.MHZ, "the same, usually"
    GPU_SLOWED_SHARE = "gpu_slowed_share", Unit.SHARE, "of the samples: power or heat lowers clocks"
    GPU_TEMPERATURE = "gpu_temperature", Unit.CELSIUS, "of the GPU"
    GPU_POWER = "gpu_power", Unit.WATT, "of the GPU"
    GPU_MEMORY_MORE = "gpu_memory_more", Unit.GIB, "in use beyond usual, by whoever it is"
    GPU_DRAM = "gpu_dram", Unit.PERCENT, "of the peak memory bandwidth"
    USUAL_GPU_DRAM = "usual_gpu_dram", Unit.PERCENT, "the same, usually"
    DEVICE_BUBBLE = "device_bubble", Unit.MS, "the device waited for a step, beyond usual"
    RANK_SKEW = "rank_skew", Unit.MS, "the other ranks waited for the slowest, beyond usual"
    # adapters
    ADAPTER_LOADS = "adapter_loads", Unit.TIMES, "an adapter was placed"
    ADAPTER_EVICTIONS = "adapter_evictions", Unit.TIMES, "one made room for another"
    ADAPTER_READ = "adapter_read", Unit.MS, "to read an adapter from the disk, the mean"
    # demand
    REQUESTS_PER_S = "requests_per_s", Unit.PER_S, "requests that reached the engine"
    USUAL_REQUESTS_PER_S = "usual_requests_per_s", Unit.PER_S, "the same, usually"
    PROMPT_TOKENS_EACH = "prompt_tokens_each", Unit.EACH, "prompt tokens of a sequence"
    USUAL_PROMPT_TOKENS_EACH = "usual_prompt_tokens_each", Unit.EACH, "the same, usually"
    OUTPUT_TOKENS_EACH = "output_tokens_each", Unit.EACH, "output tokens of a sequence that ended"
    USUAL_OUTPUT_TOKENS_EACH = "usual_output_tokens_each", Unit.EACH, "the same, usually"
    CHOICES_EACH = "choices_each", Unit.EACH, "choices (n) of a request"
    WORST_TENANT_GROWTH_SHARE = (
        "worst_tenant_growth_share", Unit.SHARE, "of the growth in requests, by one tenant",
    )  # fmt: skip
    OTHERS_WAIT_SHARE = "others_wait_share", Unit.SHARE, "of the waiting time, by the others"
    # the prefix cache and the blocks
    HIT_SHARE = "hit_share", Unit.SHARE, "of the prompt tokens, cached"
    USUAL_HIT_SHARE = "usual_hit_share", Unit.SHARE, "the same, usually"
    AVOIDABLE_TOKENS = "avoidable_tokens", Unit.TOKENS, "computed though usually cached"
    GHOST_TOKENS = "ghost_tokens", Unit.TOKENS, "that a larger cache would have held"
    RECOMPUTE_TOKENS = "recompute_tokens", Unit.TOKENS, "computed again after a preemption"
    SLOW_BLOCKS_SHARE = "slow_blocks_share", Unit.SHARE, "of the blocks, held for slow clients"
    ZOMBIE_BLOCKS_SHARE = "zombie_blocks_share", Unit.SHARE, "of the blocks, for clients that left"
    SLOW_RECOMPUTE_SHARE = "slow_recompute_share", Unit.SHARE, "of recomputed, for slow clients"
    RECOMPUTE_SHARE = "recompute_share", Unit.SHARE, "of the computed prompt tokens"


class Counted(Quantity):
    """What the checks count in the last seconds."""

    INVALID = "invalid", Unit.REQUESTS, "answers that do not obey their constraint"
    CUT = "cut", Unit.SEQUENCES, "constrained answers cut at their length"
    CONSTRAINED = "constrained", Unit.REQUESTS, "constrained answers that ended"
    LEAKED = "leaked", Unit.SEQUENCES, "computed after their client had disconnected"
    ZOMBIE_ROWS = "zombie_rows", Unit.ROWS, "rows of these"
    FAILED_SEQUENCES = "failed_sequences", Unit.SEQUENCES, "ended by a failed step"
    DEATHS = "deaths", Unit.ENGINES, "engine processes that ended"
    UNANSWERED = "unanswered", Unit.MS, "since the engine's process last responded"
    HUNG_SEQUENCES = "hung_sequences", Unit.SEQUENCES, "that wait for it"
    OUT_OF_MEMORY = "out_of_memory", Unit.STEPS, "failed: an allocation was refused"
    KERNEL_ERROR = "kernel_error", Unit.STEPS, "failed: an error of the device or a library"
    RANK_LOST = "rank_lost", Unit.STEPS, "failed: a rank of the model was lost"
    BAD_INPUT = "bad_input", Unit.STEPS, "failed: an input that the model does not have"
    XIDS = "xids", Unit.ERRORS, "of a GPU, that its driver reported (XID)"
    STEPS_MISSING = "steps_missing", Unit.STEPS, "missing from the record"
    FACTS_LOST = "facts_lost", Unit.FACTS, "that never came to telemetry"
    FOLDS_DETACHED = "folds_detached", Unit.PARTS, "of telemetry that raised and are not fed"
    EXPORTS_FAILED = "exports_failed", Unit.ATTEMPTS, "to deliver spans"


class Late(Quantity):
    """What is measured of late tokens and answers, since the onset of a fault that comes back."""

    LATE_REQUESTS = "late_requests", Unit.REQUESTS, "with something late"
    REQUESTS = "requests", Unit.REQUESTS, "that had a first token, or something late"
    LATE_GAPS = "late_gaps", Unit.TOKENS, "that came too long after the one before"
    GAP_ABOVE = "gap_above", Unit.MS, "their time beyond the limit"
    GAP_ABOVE_MOST = "gap_above_most", Unit.MS, "the most of one"
    LATE_FIRSTS = "late_firsts", Unit.TOKENS, "first tokens that came late"
    FIRST_ABOVE = "first_above", Unit.MS, "their time beyond the limit"
    FIRST_ABOVE_MOST = "first_above_most", Unit.MS, "the most of one"
    LATE_DELIVERIES = "late_deliveries", Unit.ANSWERS, "that were read late"
    DELIVERY_ABOVE = "delivery_above", Unit.MS, "their time beyond the limit"
    DELIVERY_ABOVE_MOST = "delivery_above_most", Unit.MS, "the most of one"
    TENANTS = "tenants", Unit.TENANTS, "whose requests these are"


class Promised(Quantity):
    """What is measured of the SLO class that burns its error budget fastest."""

    MISSED_SHARE = "missed_share", Unit.SHARE, "of its requests, that missed the SLO in 30 s"
    OBJECTIVE = "objective", Unit.SHARE, "of its requests, that must be good"
    BURN_30S = "burn_30s", Unit.TIMES, "share missed over the share that may miss, in 30 s"
    BURN_5MIN = "burn_5min", Unit.TIMES, "the same, in five minutes"
    TTFT_P95 = "ttft_p95", Unit.MS, "95th percentile of TTFT, of waiting requests too"
    TTFT_TARGET = "ttft_target", Unit.MS, "target of the class"
    WORST_GAP_P95 = "worst_gap_p95", Unit.MS, "95th percentile of the longest gap of a request"
    ITL_TARGET = "itl_target", Unit.MS, "target of the class"
    UTILISATION = (
        "utilisation",
        Unit.TIMES,
        "demand over what the engine can do",
    )


Taken = dict[Measurement, float | None]
"""Some of the measurements of one window; None: not measured."""


class Facts(Taken):
    """All measurements of one window: each is None until it is taken."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(Measurement))
