"""The fact of the start of a vLLM engine: its limits under our names, and under its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from telemetry.facts.engine_records import EngineStarted

UNOBSERVED = ("launch", "forward", "sampling", "masks", "device", "shadow_cache", "start_stages")
"""Parts of a step and of the engine that no hook of the scheduler sees. `shadow_cache`: what a
larger prefix cache would have had."""

_SETTINGS = {
    "scheduler_config": (
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "max_num_seqs",
        "max_num_active_seqs",
        "max_num_partial_prefills",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "enable_chunked_prefill",
        "policy",
        "async_scheduling",
        "scheduler_reserve_full_isl",
        "watermark",
        "stream_interval",
        "prefill_schedule_interval",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
    ),
    "cache_config": (
        "block_size",
        "gpu_memory_utilization",
        "cache_dtype",
        "enable_prefix_caching",
        "prefix_caching_hash_algo",
        "num_gpu_blocks",
        "kv_cache_size_tokens",
        "num_gpu_blocks_override",
        "kv_cache_memory_bytes",
        "kv_offloading_size",
        "kv_offloading_backend",
        "sliding_window",
    ),
    "model_config": ("max_model_len", "dtype", "quantization", "enforce_eager", "runner_type"),
    "parallel_config": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "data_parallel_rank",
        "decode_context_parallel_size",
        "enable_expert_parallel",
    ),
    "speculative_config": ("method", "num_speculative_tokens"),
    "kv_transfer_config": ("kv_connector", "kv_role"),
}
_LONGEST_VALUE = 100
_UNLIMITED = 2**31 - 1


def engine_started(scheduler: Any, version: str, at_ns: int) -> EngineStarted:
    """Read once, when the scheduler was made."""
    config = scheduler.vllm_config
    limits = config.scheduler_config
    return EngineStarted(
        at_ns=at_ns,
        pid=os.getpid(),
        model=model_name(config),
        backend=_device(config),
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        blocks_total=scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,  # one stays empty
        block_tokens=scheduler.block_size,
        max_model_tokens=scheduler.max_model_len,
        max_seqs=scheduler.max_num_active_reqs,
        budget_tokens=scheduler.max_num_scheduled_tokens,
        chunked_prefill=bool(limits.enable_chunked_prefill),
        pipeline_depth=int(config.max_concurrent_batches),
        queue_limit_requests=_limit(limits, "max_num_queued_reqs"),
        queue_limit_tokens=_limit(limits, "max_num_queued_tokens"),
        policy=str(limits.policy),
        prefix_cache=bool(config.cache_config.enable_prefix_caching),
        draft_tokens=int(config.num_speculative_tokens),
        engine="vllm",
        engine_version=version,
        settings=dict(settings(config)),
        unobserved=UNOBSERVED,
    )


def settings(config: Any) -> Iterator[tuple[str, str]]:
    """vLLM's own names and values; those that this version has and that are set."""
    for part, names in _SETTINGS.items():
        owner = getattr(config, part, None)
        prefix = (
            ""
            if part.endswith(("scheduler_config", "cache_config", "model_config"))
            else (part.removesuffix("_config") + ".")
        )
        for name in names:
            value = getattr(owner, name, None)
            if value is not None:
                yield prefix + name, str(value)[:_LONGEST_VALUE]


def model_name(config: Any) -> str:
    """The model's name as clients say it; a path is cut to its last part."""
    served = config.model_config.served_model_name
    if isinstance(served, list):
        served = served[0] if served else None
    name = str(served or config.model_config.model)
    return name.rstrip("/").rpartition("/")[2] if name.startswith(("/", ".")) else name


def index_of(scheduler: Any) -> int:
    """The rank of this engine core among those that serve the same model."""
    return int(scheduler.parallel_config.data_parallel_index)


def _limit(owner: Any, name: str) -> int:
    value = getattr(owner, name, None)
    return _UNLIMITED if value is None else int(value)


def _device(config: Any) -> str:
    return f"vllm-{getattr(config.device_config, 'device_type', 'unknown')}"
