"""Metrics of the engine: its state, its steps, its tokens, and the time on the device."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

READY = Metric(
    "phasescope_ready",
    Kind.GAUGE,
    "Whether the server takes requests: 1 when an engine is ready, else 0.",
)
RUNNING = Metric(
    "phasescope_running", Kind.GAUGE, "Number of sequences in the running set of the scheduler."
)
WAITING = Metric(
    "phasescope_waiting", Kind.GAUGE, "Number of sequences in the waiting queue of the scheduler."
)
WAITING_TOKENS = Metric(
    "phasescope_waiting_tokens",
    Kind.GAUGE,
    "Number of tokens that the sequences in the waiting queue still have to prefill.",
)
BLOCKS_USED = Metric(
    "phasescope_kv_blocks_used", Kind.GAUGE, "Number of KV cache blocks that live sequences hold."
)
BLOCKS_CACHED = Metric(
    "phasescope_kv_blocks_cached",
    Kind.GAUGE,
    "Number of KV cache blocks that no sequence holds and whose contents the prefix cache keeps.",
)
BLOCKS_TOTAL = Metric("phasescope_kv_blocks", Kind.GAUGE, "Number of blocks in the paged KV cache.")
ENGINE_RESTARTS = Metric(
    "phasescope_engine_restarts",
    Kind.COUNTER,
    "Number of engine processes that died; each is replaced.",
)
ENGINE_HEARTBEAT_AGE = Metric(
    "phasescope_engine_heartbeat_age_seconds",
    Kind.GAUGE,
    "Seconds since the last heartbeat of the engine process; absent before an engine has loaded.",
)
ENGINE_HUNG = Metric(
    "phasescope_engine_hung",
    Kind.COUNTER,
    "Number of times that a live engine process stopped responding.",
)
STEPS = Metric("phasescope_steps", Kind.COUNTER, "Number of engine steps.")
STEPS_TARGET_UNREACHABLE = Metric(
    "phasescope_steps_target_unreachable",
    Kind.COUNTER,
    "Number of engine steps whose decodes alone took longer than the latency target of the step, "
    "so that no step budget could meet it: the batch is too large or the target too tight.",
)
STEPS_FAILED = Metric(
    "phasescope_steps_failed",
    Kind.COUNTER,
    "Number of engine steps that could not be computed, by failure.",
    ("failure",),
)
PROMPT_TOKENS = Metric(
    "phasescope_prompt_tokens",
    Kind.COUNTER,
    "Number of prompt tokens computed, those recomputed after a preemption included.",
)
OUTPUT_TOKENS = Metric(
    "phasescope_output_tokens", Kind.COUNTER, "Number of output tokens generated."
)
PREEMPTIONS = Metric(
    "phasescope_preemptions",
    Kind.COUNTER,
    "Number of preemptions: a running sequence lost its KV cache blocks.",
)
TOOL_CALLS = Metric(
    "phasescope_tool_calls",
    Kind.COUNTER,
    "Number of function calls in answers, by whether their arguments obey the function's schema: "
    "valid, invalid, unfinished (cut by a limit) or unchecked.",
    ("outcome",),
)
ADAPTERS_KNOWN = Metric(
    "phasescope_adapters_known", Kind.GAUGE, "Number of LoRA adapters that clients may ask for."
)
ADAPTERS_PLACED = Metric(
    "phasescope_adapters_placed",
    Kind.GAUGE,
    "Number of LoRA adapters whose weights are on the device.",
)
ADAPTERS_PLACED_BYTES = Metric(
    "phasescope_adapters_placed_bytes",
    Kind.GAUGE,
    "Bytes of device memory that placed LoRA adapters take.",
)
ADAPTERS_MEMORY_BYTES = Metric(
    "phasescope_adapters_memory_bytes",
    Kind.GAUGE,
    "Bytes of device memory that LoRA adapters may take (--lora-memory).",
)
GRAMMAR_MASK_SECONDS = Metric(
    "phasescope_grammar_mask_seconds",
    Kind.COUNTER,
    "Seconds spent in computing the token masks of constrained sequences.",
)
PROMPT_SCORE_SECONDS = Metric(
    "phasescope_prompt_score_seconds",
    Kind.COUNTER,
    "Seconds spent in computing log-probabilities of prompt tokens.",
)
DEVICE_BUSY = Metric(
    "phasescope_device_busy_seconds",
    Kind.COUNTER,
    "Seconds in which the device computed steps, by its own clock; absent for a device "
    "without one.",
)
DEVICE_BUBBLE = Metric(
    "phasescope_device_bubble_seconds",
    Kind.COUNTER,
    "Seconds in which the device idled between two steps although there was work; absent "
    "for a device without a clock.",
)
DEVICE_PHASE = Metric(
    "phasescope_device_phase_seconds",
    Kind.COUNTER,
    "Seconds of device time in sampled decode steps, by phase: attention, matrices or sampling.",
    ("phase",),
)
RANK_SKEW = Metric(
    "phasescope_rank_skew_seconds",
    Kind.COUNTER,
    "Seconds that the first tensor-parallel rank waited for the last one in all-reduces; "
    "absent with one rank.",
)
TOTALS = {
    name: Metric(f"phasescope_{exposed}", Kind.COUNTER, text)
    for name, exposed, text in (
        (
            "admitted_tokens",
            "admitted_tokens",
            "Number of tokens of sequences at their admission to the running set.",
        ),
        (
            "prefix_hit_tokens",
            "prefix_hit_tokens",
            "Number of admitted tokens that were found in the prefix cache.",
        ),
        (
            "host_hit_tokens",
            "prefix_host_hit_tokens",
            "Number of admitted tokens that were loaded back from the CPU offload.",
        ),
        (
            "ghost_hit_tokens",
            "prefix_ghost_hit_tokens",
            "Number of admitted tokens that a larger prefix cache would have had.",
        ),
        (
            "drafted_tokens",
            "drafted_tokens",
            "Number of draft tokens that the n-gram proposer gave.",
        ),
        ("accepted_tokens", "draft_accepted_tokens", "Number of draft tokens that were accepted."),
        (
            "masked_tokens",
            "sampled_masked_tokens",
            "Number of tokens sampled under a grammar mask.",
        ),
        ("scored_tokens", "prompt_scored_tokens", "Number of prompt tokens that were scored."),
        ("grammars_compiled", "grammars_compiled", "Number of grammars compiled."),
        (
            "grammars_cached",
            "grammars_cached",
            "Number of grammars found in the cache of compiled ones.",
        ),
        ("grammars_refused", "grammars_refused", "Number of grammars that could not be compiled."),
        (
            "adapter_loads",
            "adapter_loads",
            "Number of times that a LoRA adapter was placed on the device.",
        ),
        (
            "adapter_evictions",
            "adapter_evictions",
            "Number of times that a LoRA adapter made room for another one.",
        ),
        (
            "adapter_failures",
            "adapter_failures",
            "Number of times that a LoRA adapter could not be loaded.",
        ),
        (
            "outputs_valid",
            "outputs_valid",
            "Number of constrained outputs that obey their constraint.",
        ),
        (
            "outputs_invalid",
            "outputs_invalid",
            "Number of constrained outputs that do not obey their constraint.",
        ),
        (
            "reasoning_tokens",
            "reasoning_tokens",
            "Number of output tokens that were reasoning before an answer.",
        ),
        (
            "reasonings_cut",
            "reasonings_cut",
            "Number of choices whose reasoning was ended by its budget.",
        ),
        (
            "tool_calls_malformed",
            "tool_calls_malformed",
            "Number of beginnings of function calls that did not go on as one and became text.",
        ),
        (
            "tool_calls_forgotten",
            "tool_calls_forgotten",
            "Number of function calls whose result is not waited for, because too many are.",
        ),
        (
            "tool_results",
            "tool_results",
            "Number of results that came back for function calls of this server's answers.",
        ),
        (
            "tool_results_unknown",
            "tool_results_unknown",
            "Number of results for function calls that this server does not remember.",
        ),
        (
            "pauses",
            "client_pauses",
            "Number of times that a sequence was paused because its client read too slowly.",
        ),
        (
            "blocks_copied",
            "kv_blocks_copied",
            "Number of KV cache blocks copied to or from the CPU offload.",
        ),
    )
}
"""Counters by the field of `telemetry.stats.totals.Totals` that holds the value."""
