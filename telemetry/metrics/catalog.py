"""Every metric as data: name, kind, unit, help and labels. Exposition is generated from it."""

from __future__ import annotations

from telemetry.metrics.gen_ai import GenAiMeasure
from telemetry.metrics.metric import LATENCY_BOUNDS_S, Kind, Metric
from telemetry.requests.phases import Measure

_GEN_AI_DURATION = tuple(0.01 * 2**i for i in range(14))
_GEN_AI_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_GEN_AI_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

READY = Metric("phasescope_ready", Kind.GAUGE, "1 when an engine takes requests.")
RUNNING = Metric("phasescope_running", Kind.GAUGE, "Sequences in the running set.")
WAITING = Metric("phasescope_waiting", Kind.GAUGE, "Sequences in the waiting queue.")
WAITING_TOKENS = Metric(
    "phasescope_waiting_tokens", Kind.GAUGE, "Tokens that the waiting sequences must prefill."
)
BLOCKS_USED = Metric("phasescope_kv_blocks_used", Kind.GAUGE, "Blocks held by live sequences.")
BLOCKS_CACHED = Metric(
    "phasescope_kv_blocks_cached", Kind.GAUGE, "Blocks nobody holds whose contents are kept."
)
BLOCKS_TOTAL = Metric("phasescope_kv_blocks", Kind.GAUGE, "Blocks of the paged KV cache.")
ENGINE_RESTARTS = Metric("phasescope_engine_restarts", Kind.COUNTER, "Engine processes that died.")
ENGINE_HEARTBEAT_AGE = Metric(
    "phasescope_engine_heartbeat_age_seconds",
    Kind.GAUGE,
    "Time since the engine's last sign of life; absent while none has loaded.",
)
ENGINE_HUNG = Metric(
    "phasescope_engine_hung", Kind.COUNTER, "Times an engine that lives stopped responding."
)
STEPS = Metric("phasescope_steps", Kind.COUNTER, "Engine steps.")
STEPS_FAILED = Metric(
    "phasescope_steps_failed",
    Kind.COUNTER,
    "Steps that could not be computed, by why.",
    ("failure",),
)
PROMPT_TOKENS = Metric(
    "phasescope_prompt_tokens", Kind.COUNTER, "Prompt tokens computed, recomputed ones included."
)
OUTPUT_TOKENS = Metric("phasescope_output_tokens", Kind.COUNTER, "Tokens generated.")
PREEMPTIONS = Metric("phasescope_preemptions", Kind.COUNTER, "Sequences that lost their blocks.")
REQUESTS = Metric("phasescope_requests", Kind.COUNTER, "Requests ended, by outcome.", ("outcome",))
FACTS_LOST = Metric("phasescope_facts_lost", Kind.COUNTER, "Facts that no fold has seen.")
FACTS_WAITING = Metric(
    "phasescope_facts_waiting",
    Kind.GAUGE,
    "Facts that no fold has seen yet: what is shown is behind by so many.",
)
FOLDS_DETACHED = Metric(
    "phasescope_folds_detached",
    Kind.GAUGE,
    "1 for each part of telemetry that raised and is not fed any more; absent when all are.",
    ("fold",),
)
FOLD_ERRORS = Metric(
    "phasescope_fold_errors",
    Kind.COUNTER,
    "Times a fold, a listener or a turn of telemetry raised.",
    ("fold",),
)
SPANS_EXPORTED = Metric("phasescope_spans_exported", Kind.COUNTER, "Spans taken by the receiver.")
GPU = Metric(
    "phasescope_gpu", Kind.GAUGE, "What NVML reports, by GPU and quantity.", ("gpu", "quantity")
)
GPU_XIDS = Metric("phasescope_gpu_xids", Kind.COUNTER, "Errors of a GPU.", ("gpu", "xid"))
HOST = Metric(
    "phasescope_host", Kind.GAUGE, "The machine in the last second, by quantity.", ("quantity",)
)
HOST_PAUSES = Metric(
    "phasescope_host_pauses", Kind.COUNTER, "Times a process stood still.", ("process", "cause")
)
HOST_PAUSE_SECONDS = Metric(
    "phasescope_host_pause_seconds",
    Kind.COUNTER,
    "Time in which a process stood still.",
    ("process", "cause"),
)
HOST_VICTIMS = Metric(
    "phasescope_host_victims",
    Kind.COUNTER,
    "Requests that a process which stood still has delayed.",
    ("process", "cause"),
)
HOST_VICTIM_SECONDS = Metric(
    "phasescope_host_victim_seconds",
    Kind.COUNTER,
    "Latency that pauses of a process cost requests, all together.",
    ("process", "cause"),
)
CONNECTIONS = Metric("phasescope_connections", Kind.GAUGE, "Open connections of HTTP clients.")
CONNECTIONS_ACCEPTED = Metric(
    "phasescope_connections_accepted", Kind.COUNTER, "Connections taken from the listening socket."
)
CONNECTIONS_REFUSED = Metric(
    "phasescope_connections_refused",
    Kind.COUNTER,
    "Connections ended by the server before they had an answer, by why.",
    ("reason",),
)
ACCEPT_FAILURES = Metric(
    "phasescope_accept_failures",
    Kind.COUNTER,
    "Times no connection could be taken, as for lack of file descriptors.",
)
INGEST_WAITING = Metric(
    "phasescope_ingest_waiting", Kind.GAUGE, "Bodies that wait for a worker process to read them."
)
INGEST_WAITING_BYTES = Metric(
    "phasescope_ingest_waiting_bytes", Kind.GAUGE, "Bytes of the bodies that wait to be read."
)
INGEST_REFUSED = Metric(
    "phasescope_ingest_refused",
    Kind.COUNTER,
    "Bodies answered with 429 because as many waited to be read as may.",
)
INGEST_WORKERS_ENDED = Metric(
    "phasescope_ingest_workers_ended",
    Kind.COUNTER,
    "Worker processes that read bodies and were ended or died, by why; each is replaced.",
    ("reason",),
)
STEP_SECONDS = Metric(
    "phasescope_step_seconds", Kind.COUNTER, "From one step to the next, by kind.", ("kind",)
)
FORWARD_SECONDS = Metric(
    "phasescope_forward_seconds", Kind.COUNTER, "Forward passes, by kind of step.", ("kind",)
)
MODELLED_BYTES = Metric(
    "phasescope_modelled_bytes", Kind.COUNTER, "What steps must at least read.", ("kind",)
)
MODELLED_FLOPS = Metric(
    "phasescope_modelled_flops", Kind.COUNTER, "What steps must at least compute.", ("kind",)
)
MBU = Metric(
    "phasescope_mbu", Kind.GAUGE, "Share of the memory bandwidth that steps need.", ("kind",)
)
MFU = Metric("phasescope_mfu", Kind.GAUGE, "Share of the peak rate that steps need.", ("kind",))
PEAK = Metric("phasescope_peak_per_second", Kind.GAUGE, "Bytes or operations at most.", ("of",))
MEASURED_BANDWIDTH = Metric(
    "phasescope_measured_bytes_per_second",
    Kind.GAUGE,
    "Memory traffic by hardware counters.",
    ("provenance",),
)
SPANS_DROPPED = Metric(
    "phasescope_spans_dropped",
    Kind.COUNTER,
    "Spans of kept traces that did not arrive; a tree that could not be built counts as one.",
    ("reason",),
)
TRACING_MODE = Metric("phasescope_tracing_mode", Kind.GAUGE, "1 for the mode in force.", ("mode",))
TRACE_RATE = Metric(
    "phasescope_trace_rate", Kind.GAUGE, "Share of unremarkable requests kept in mode sampled."
)
TRACES_KEPT = Metric("phasescope_traces_kept", Kind.COUNTER, "Traces kept, by why.", ("reason",))
TRACES_LEFT = Metric(
    "phasescope_traces_left", Kind.COUNTER, "Traces not kept, by why.", ("reason",)
)
TRACES_QUEUED = Metric("phasescope_traces_queued", Kind.GAUGE, "Kept traces on their way.")
EXPORT_ATTEMPTS = Metric(
    "phasescope_span_export_attempts", Kind.COUNTER, "Requests made to the span receiver."
)
EXPORT_FAILURES = Metric(
    "phasescope_span_export_failures",
    Kind.COUNTER,
    "Requests to the span receiver that it did not take.",
)
EXPORT_BYTES = Metric(
    "phasescope_span_export_bytes", Kind.COUNTER, "Encoded spans sent, before compression."
)
EXPORT_SECONDS = Metric(
    "phasescope_span_export_cpu_seconds", Kind.COUNTER, "CPU time of the exporter's thread."
)
EXPORT_LAG = Metric(
    "phasescope_span_export_lag_seconds",
    Kind.GAUGE,
    "Age of the oldest trace on its way, from the end of its request; 0 when none is.",
)
LAST_EXPORT_LAG = Metric(
    "phasescope_span_last_export_lag_seconds",
    Kind.GAUGE,
    "Age of the oldest trace in the last chunk delivered; absent before the first.",
)
RECORDING = Metric(
    "phasescope_recording", Kind.GAUGE, "1 while facts are recorded; 0 when switched off."
)
FOLD_SECONDS = Metric(
    "phasescope_fold_seconds", Kind.COUNTER, "Time spent in a telemetry fold.", ("fold",)
)

JOURNAL_BYTES = Metric("phasescope_journal_bytes", Kind.GAUGE, "Memory that the journal holds.")
JOURNAL_CAPACITY = Metric(
    "phasescope_journal_capacity_bytes", Kind.GAUGE, "Memory that the journal may hold."
)
JOURNAL_FACTS = Metric("phasescope_journal_facts", Kind.GAUGE, "Facts in the journal.")
JOURNAL_SECONDS = Metric(
    "phasescope_journal_seconds", Kind.GAUGE, "Time that the facts in the journal cover."
)
JOURNAL_DROPPED = Metric(
    "phasescope_journal_facts_dropped", Kind.COUNTER, "Facts that left the journal for newer ones."
)
JOURNAL_SHORT = Metric(
    "phasescope_journal_short",
    Kind.GAUGE,
    "1 when the journal is full and covers less than five minutes.",
)
DUMPS = Metric("phasescope_dumps", Kind.COUNTER, "Dumps written, by reason.", ("reason",))
DUMPS_SUPPRESSED = Metric(
    "phasescope_dumps_suppressed",
    Kind.COUNTER,
    "Dumps not taken because one had just been, by reason.",
    ("reason",),
)
DUMPS_FAILED = Metric("phasescope_dumps_failed", Kind.COUNTER, "Dumps that could not be written.")
STALLS = Metric(
    "phasescope_engine_stalls", Kind.COUNTER, "Times an engine with work committed no step."
)

HARM_SECONDS = Metric(
    "phasescope_harm_seconds", Kind.COUNTER, "Taken from others; co_decode is nobody's.", ("part",)
)
_HARM = "Time that prompts and masks took from other requests, by whose they are."
HARM_BY_TENANT = Metric("phasescope_harm_by_tenant_seconds", Kind.COUNTER, _HARM, ("tenant",))
HARM_BY_CLASS = Metric("phasescope_harm_by_class_seconds", Kind.COUNTER, _HARM, ("slo_class",))
FINDING = Metric(
    "phasescope_finding",
    Kind.GAUGE,
    "1 for each cause of lost time that is found now; absent when all is well.",
    ("symptom",),
)
FINDING_HARM_SECONDS = Metric(
    "phasescope_finding_harm_seconds",
    Kind.GAUGE,
    "Requests' time lost to a cause since it began.",
    ("symptom",),
)
INDETERMINATE = Metric(
    "phasescope_diagnosis_indeterminate",
    Kind.GAUGE,
    "1 while the record does not say what is wrong.",
)
ROOT_FAILURES = Metric(
    "phasescope_root_cause_failures",
    Kind.COUNTER,
    "Times that what would have helped could not be worked out, by why.",
    ("reason",),
)
GRAMMAR_MASK_SECONDS = Metric(
    "phasescope_grammar_mask_seconds", Kind.COUNTER, "Time spent in masks of constrained rows."
)
DEVICE_BUSY = Metric(
    "phasescope_device_busy_seconds",
    Kind.COUNTER,
    "Time in which the device computed steps, by its own clock; only where it has one.",
)
DEVICE_BUBBLE = Metric(
    "phasescope_device_bubble_seconds",
    Kind.COUNTER,
    "Time in which the device waited for the next step although there was work.",
)
DEVICE_PHASE = Metric(
    "phasescope_device_phase_seconds",
    Kind.COUNTER,
    "Device time of sampled decode steps, by what it went into.",
    ("phase",),
)
RANK_SKEW = Metric(
    "phasescope_rank_skew_seconds",
    Kind.COUNTER,
    "Time that the first rank of each sum waited for the last; only with several ranks.",
)
TOTALS = {
    name: Metric(f"phasescope_{exposed}", Kind.COUNTER, text)
    for name, exposed, text in (
        ("admitted_tokens", "admitted_tokens", "Tokens of sequences when they were admitted."),
        ("prefix_hit_tokens", "prefix_hit_tokens", "Admitted tokens found in the prefix cache."),
        (
            "host_hit_tokens",
            "prefix_host_hit_tokens",
            "Admitted tokens brought back from host memory.",
        ),
        (
            "ghost_hit_tokens",
            "prefix_ghost_hit_tokens",
            "Admitted tokens that a larger cache would have had.",
        ),
        ("drafted_tokens", "drafted_tokens", "Tokens guessed by prompt lookup."),
        ("accepted_tokens", "draft_accepted_tokens", "Guessed tokens that were right."),
        ("masked_tokens", "sampled_masked_tokens", "Tokens sampled under a constraint."),
        ("grammars_compiled", "grammars_compiled", "Constraints compiled."),
        ("grammars_cached", "grammars_cached", "Constraints found compiled."),
        ("grammars_refused", "grammars_refused", "Constraints that could not be compiled."),
        ("outputs_valid", "outputs_valid", "Constrained outputs that obey their constraint."),
        ("outputs_invalid", "outputs_invalid", "Constrained outputs that do not."),
        ("pauses", "client_pauses", "Sequences paused because their reader was too slow."),
        ("blocks_copied", "kv_blocks_copied", "Blocks copied to or from host memory."),
    )
}

SLO_REQUESTS = Metric(
    "phasescope_slo_requests",
    Kind.COUNTER,
    "Requests ended, by what that says about the SLO of their class.",
    ("slo_class", "verdict"),
)
SLO_TOKENS = Metric(
    "phasescope_slo_tokens", Kind.COUNTER, "Tokens of requests that count.", ("slo_class",)
)
SLO_GOOD_TOKENS = Metric(
    "phasescope_slo_good_tokens", Kind.COUNTER, "Tokens of requests that met it.", ("slo_class",)
)
SLO_OBJECTIVE = Metric(
    "phasescope_slo_objective_ratio", Kind.GAUGE, "Share that shall be good.", ("slo_class",)
)
SLO_TTFT_TARGET = Metric(
    "phasescope_slo_ttft_target_seconds", Kind.GAUGE, "TTFT promised to a class.", ("slo_class",)
)
SLO_ITL_TARGET = Metric(
    "phasescope_slo_itl_target_seconds", Kind.GAUGE, "ITL promised to a class.", ("slo_class",)
)
SLO_BURN = Metric(
    "phasescope_slo_burn_ratio",
    Kind.GAUGE,
    "Share of requests that missed over the share that may; absent when there were none.",
    ("slo_class", "window"),
)
SLO_UNKNOWN = Metric(
    "phasescope_slo_unknown_class_requests",
    Kind.COUNTER,
    "Requests that named an SLO class that does not exist; they got the default one.",
)
COST = Metric(
    "phasescope_million_token_cost",
    Kind.GAUGE,
    "What a million tokens cost at --price-per-hour: all of them, or counting only good ones.",
    ("which", "window"),
)
CLASS_OVERFLOW = Metric(
    "phasescope_class_overflow_values",
    Kind.COUNTER,
    "Latencies counted under the class `other`, because there were too many classes.",
)
METRIC_EXPORTS = Metric(
    "phasescope_otlp_metric_exports", Kind.COUNTER, "Exports of metrics over OTLP.", ("result",)
)
METRIC_POINTS_REJECTED = Metric(
    "phasescope_otlp_metric_rejected_points", Kind.COUNTER, "Points that the receiver refused."
)

_MEASURE_HELP = {
    Measure.QUEUE: "Tokenized to first scheduled.",
    Measure.PREFILL: "First scheduled to first token.",
    Measure.TTFT: "Accepted to first content sent.",
    Measure.ITL: "Gap between successive tokens of a sequence.",
    Measure.TPOT: "Mean time per output token after the first.",
    Measure.E2E: "Accepted to last byte sent.",
    Measure.GRAMMAR_COMPILE: "Compiling a constraint, cached ones included.",
    Measure.CANCEL_TO_FREE: "Disconnect, delete or timeout noticed to last block free.",
    Measure.TOKENIZE: "Body parsed to prompt encoded.",
    Measure.DELIVER: "Last token made text to last byte sent.",
    Measure.MASK: "Masks of constrained rows, of one step.",
}

CLASS_LABELS = ("slo_class", "prompt", "cache", "tenant")
"""Labels of the histograms at `/metrics?classes=full`; without it `slo_class` alone."""

HISTOGRAMS = tuple(
    Metric(
        f"phasescope_{measure.value}_seconds",
        Kind.HISTOGRAM,
        _MEASURE_HELP[measure],
        ("slo_class",),
        measure,
        LATENCY_BOUNDS_S,
    )
    for measure in Measure
)

_GEN_AI_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
GEN_AI_HISTOGRAMS = {
    GenAiMeasure.DURATION: Metric(
        "gen_ai_server_request_duration_seconds",
        Kind.HISTOGRAM,
        "GenAI convention: request duration, whatever its outcome.",
        (*_GEN_AI_LABELS, "error_type"),
        bounds_s=_GEN_AI_DURATION,
        otel="gen_ai.server.request.duration",
    ),
    GenAiMeasure.TTFT: Metric(
        "gen_ai_server_time_to_first_token_seconds",
        Kind.HISTOGRAM,
        "GenAI convention: time to first token.",
        _GEN_AI_LABELS,
        bounds_s=_GEN_AI_TTFT,
        otel="gen_ai.server.time_to_first_token",
    ),
    GenAiMeasure.TPOT: Metric(
        "gen_ai_server_time_per_output_token_seconds",
        Kind.HISTOGRAM,
        "GenAI convention: time per output token after the first.",
        _GEN_AI_LABELS,
        bounds_s=_GEN_AI_TPOT,
        otel="gen_ai.server.time_per_output_token",
    ),
}

OTEL_LABELS = {
    "gen_ai_operation_name": "gen_ai.operation.name",
    "gen_ai_provider_name": "gen_ai.provider.name",
    "gen_ai_request_model": "gen_ai.request.model",
    "error_type": "error.type",
}
"""Labels whose name in OTLP is another."""


def all_metrics() -> list[Metric]:
    """Every metric of this file, by name."""
    found: set[Metric] = set()
    for value in globals().values():
        if isinstance(value, Metric):
            found.add(value)
        elif isinstance(value, dict):
            found.update(one for one in value.values() if isinstance(one, Metric))
        elif isinstance(value, tuple):
            found.update(one for one in value if isinstance(one, Metric))
    return sorted(found, key=lambda metric: metric.name)
