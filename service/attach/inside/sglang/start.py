"""The fact of the start of SGLang's scheduler: its limits under our names, and under its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from telemetry.facts.engine_records import EngineStarted

UNOBSERVED = (
    "forward",
    "sampling",
    "masks",
    "device",
    "shadow_cache",
    "start_stages",
    "block_aliases",
)
"""Parts of a step and of the engine that no hook of the scheduler sees. `shadow_cache`: what a
larger prefix cache would have had. `block_aliases`: which sequences share a prefix."""

_SETTINGS = (
    "schedule_policy", "schedule_conservativeness", "max_running_requests", "max_queued_requests",
    "max_total_tokens", "max_prefill_tokens", "chunked_prefill_size", "prefill_max_requests",
    "enable_mixed_chunk", "prefill_decode_interval", "enable_prefill_delayer",
    "disable_overlap_schedule", "enable_priority_scheduling", "retraction_policy", "page_size",
    "mem_fraction_static", "kv_cache_dtype", "disable_radix_cache", "radix_eviction_policy",
    "enable_hierarchical_cache", "hicache_ratio", "hicache_storage_backend", "context_length",
    "dtype", "quantization", "attention_backend", "sampling_backend", "grammar_backend",
    "speculative_algorithm", "speculative_num_draft_tokens", "speculative_num_steps",
    "stream_interval", "num_continuous_decode_steps", "tp_size", "dp_size", "ep_size", "device",
    "disable_cuda_graph", "tokenizer_worker_num",
)  # fmt: skip
_LONGEST_VALUE = 100
_UNLIMITED = 2**31 - 1


def engine_started(scheduler: Any, version: str, at_ns: int) -> EngineStarted:
    """Read once, when the scheduler is about to enter its loop."""
    arguments = resolved_arguments(scheduler)
    page = scheduler.page_size
    queued = scheduler.max_queued_requests
    return EngineStarted(
        at_ns=at_ns,
        pid=os.getpid(),
        model=model_name(arguments),
        backend=f"sglang-{scheduler.device}",
        dtype=str(scheduler.model_config.dtype).removeprefix("torch."),
        blocks_total=scheduler.max_total_num_tokens // page,
        block_tokens=page,
        max_model_tokens=int(scheduler.model_config.context_len),
        max_seqs=scheduler.max_running_requests,
        budget_tokens=budget_tokens(scheduler),
        chunked_prefill=scheduler.chunked_prefill_size is not None,
        pipeline_depth=2 if scheduler.enable_overlap else 1,
        queue_limit_requests=_UNLIMITED if queued is None else int(queued),
        queue_limit_tokens=_UNLIMITED,
        policy=str(scheduler.schedule_policy),
        prefix_cache=not getattr(arguments, "disable_radix_cache", False),
        draft_tokens=draft_tokens(scheduler),
        engine="sglang",
        engine_version=version,
        settings=dict(settings(arguments)),
        unobserved=UNOBSERVED,
    )


def budget_tokens(scheduler: Any) -> int:
    """The most prompt tokens of a step. Running sequences are not counted against it."""
    chunk = scheduler.chunked_prefill_size
    limit = int(scheduler.max_prefill_tokens)
    return limit if chunk is None else min(limit, int(chunk))


def draft_tokens(scheduler: Any) -> int:
    """How many tokens of a decode row are drafts."""
    if scheduler.spec_algorithm.is_none():
        return 0
    found = getattr(resolved_arguments(scheduler), "speculative_num_draft_tokens", None)
    return max(0, int(found or 1) - 1)


def settings(arguments: Any) -> Iterator[tuple[str, str]]:
    """SGLang's own names and values; those that this version has and that are set."""
    for name in _SETTINGS:
        value = getattr(arguments, name, None)
        if value is not None:
            yield name, str(value)[:_LONGEST_VALUE]


def model_name(arguments: Any) -> str:
    """The model's name as clients say it; a path is cut to its last part."""
    name = str(arguments.served_model_name or arguments.model_path)
    return name.rstrip("/").rpartition("/")[2] if name.startswith(("/", ".", "~")) else name


def resolved_arguments(scheduler: Any) -> Any:
    """The command line with SGLang's defaults filled in, where it keeps the two apart."""
    try:
        from sglang.srt.arg_groups.overrides import resolving_view

        return resolving_view(scheduler.server_args)
    except ImportError:
        return scheduler.server_args
