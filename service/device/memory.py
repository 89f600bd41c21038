"""How many cache blocks there are, on the device and on the host: arithmetic to check."""

from __future__ import annotations

from pathlib import Path

from service.config.settings import ConfigError, EngineConfig
from service.device.cache.kv_cache import KvFormat
from service.device.spec import ModelSpec
from service.engine.kv.blocks import blocks_for

DEFAULT_CONTEXT_TOKENS = 8192
_TOKENS_A_SEQUENCE = 1024
_CONTEXTS = 4
_CPU_SHARE = 0.25
_GIB = 1 << 30


def choose_context(config: EngineConfig, spec: ModelSpec) -> int:
    """Prompt and output together, in tokens. Raises ConfigError when the model has less."""
    allowed = spec.context_tokens
    if config.max_model_tokens is None:
        return min(allowed, DEFAULT_CONTEXT_TOKENS)
    if config.max_model_tokens > allowed:
        raise ConfigError(
            f"--max-model-len {config.max_model_tokens} is more than the {allowed} tokens that "
            f"{config.model.name} can attend to"
        )
    return config.max_model_tokens


def choose_kv_format(config: EngineConfig) -> KvFormat:
    return KvFormat.PLAIN if config.kv_dtype == "auto" else KvFormat(config.kv_dtype)


def choose_blocks(
    config: EngineConfig,
    max_model_tokens: int,
    block_tokens: int,
    block_bytes: int,
    room_bytes: int | None = None,
) -> int:
    """Blocks of the cache: of `room_bytes` where the device was measured, else what a full batch
    needs, if the host has so much. Raises ConfigError when one request would not fit."""
    needed = blocks_for(max_model_tokens, block_tokens)
    budget_bytes = config.kv_bytes or room_bytes
    if budget_bytes is None:
        tokens = max(_CONTEXTS * max_model_tokens, config.max_seqs * _TOKENS_A_SEQUENCE)
        wanted_bytes = blocks_for(tokens, block_tokens) * block_bytes
        free_bytes = _host_available_bytes() // config.tensor_parallel
        budget_bytes = min(wanted_bytes, int(free_bytes * _CPU_SHARE))
    blocks = budget_bytes // block_bytes
    if blocks < needed:
        raise ConfigError(
            f"the KV cache of {_size(budget_bytes)} holds {blocks} blocks of {block_tokens} tokens "
            f"({block_bytes} bytes each), but one request of {max_model_tokens} tokens needs "
            f"{needed} blocks ({_size(needed * block_bytes)}); raise --kv-memory or lower "
            "--max-model-len"
        )
    return blocks


def choose_host_slots(config: EngineConfig, block_tokens: int, block_bytes: int) -> int:
    """Blocks that the host keeps, 0 when off. Raises ConfigError when they cannot be had."""
    if config.kv_offload_bytes is None:
        return 0
    slots = config.kv_offload_bytes // block_bytes
    available_bytes = _host_available_bytes()
    if slots < 1:
        raise ConfigError(
            f"--kv-offload of {config.kv_offload_bytes} bytes holds no block of {block_tokens} "
            f"tokens ({block_bytes} bytes each); raise it or leave it out"
        )
    if slots * block_bytes > available_bytes:
        raise ConfigError(
            f"--kv-offload of {_size(config.kv_offload_bytes)} is more than the "
            f"{_size(available_bytes)} of memory that this machine has free; lower it"
        )
    return slots


def _host_available_bytes() -> int:
    """MemAvailable where the system states it; 4 GiB is assumed elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 4 * _GIB
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 4 * _GIB


def _size(count_bytes: int) -> str:
    if count_bytes >= _GIB:
        return f"{count_bytes / _GIB:.2f} GiB"
    return f"{count_bytes / (1 << 20):.2f} MiB"
