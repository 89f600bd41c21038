"""From a configuration to an executor that is ready to run: what the engine process calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from service.config import ConfigError, EngineConfig
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.kv_cache import KvCache
from service.device.memory import choose_blocks, choose_context
from service.device.model import Decoder
from service.device.precision import choose_precision
from service.device.spec import ModelSpec
from service.device.torch_executor import TorchExecutor
from service.device.weights.source import open_weights
from telemetry.clock import Clock

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An executor and what is known about it."""

    executor: TorchExecutor
    spec: ModelSpec
    max_model_tokens: int
    backend: str
    dtype: str


def load_executor(
    config: EngineConfig, clock: Clock, progress: Callable[[str], None]
) -> LoadedEngine:
    """Load the model and allocate its cache. Raises ConfigError with one line."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = choose_device(config.device)
    precision = choose_precision(config.dtype, device)
    dtype = precision.compute
    progress(f"reading {config.model.name}")
    source = open_weights(config.model)
    max_model_tokens = choose_context(config, source.spec)
    blocks = choose_blocks(config, source.spec, max_model_tokens, BLOCK_TOKENS, dtype, device)
    attention = TorchPagedAttention(BLOCK_TOKENS, device)
    decoder = Decoder(source, attention, max_model_tokens, precision, device, progress)
    progress(f"allocating {blocks} cache blocks of {BLOCK_TOKENS} tokens")
    cache = KvCache(source.spec, blocks, BLOCK_TOKENS, dtype, device)
    return LoadedEngine(
        executor=TorchExecutor(decoder, cache, clock, config.pipeline_depth),
        spec=source.spec,
        max_model_tokens=max_model_tokens,
        backend=f"{attention.capabilities.name}-{device.type}",
        dtype=precision.label,
    )


def choose_device(wanted: str) -> torch.device:
    """`auto` takes CUDA when there is one. Raises ConfigError when CUDA is asked for in vain."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device; use --device cpu")
    return torch.device("cuda")
