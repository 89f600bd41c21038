"""From a configuration to an executor that is ready to run: what the engine process calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from service.config import ConfigError, EngineConfig
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.grammar_compiler import GrammarCompiler
from service.device.host_tier import HostTier
from service.device.kv_cache import KvFormat, make_cache
from service.device.memory import (
    choose_blocks,
    choose_context,
    choose_host_slots,
    choose_kv_format,
)
from service.device.model import Decoder
from service.device.precision import choose_precision
from service.device.quantize import choose_matrix_format
from service.device.spec import ModelSpec
from service.device.torch_executor import TorchExecutor
from service.device.weights.source import open_weights
from telemetry.clock import Clock
from telemetry.reasons import StartStage

BLOCK_TOKENS = 16
_KV_LABEL = {KvFormat.PLAIN: None, KvFormat.INT8: "int8 KV cache"}


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An executor and what is known about it."""

    executor: TorchExecutor
    spec: ModelSpec
    max_model_tokens: int
    backend: str
    dtype: str


def load_executor(
    config: EngineConfig,
    clock: Clock,
    progress: Callable[[str], None],
    make_compiler: Callable[[int], GrammarCompiler] | None = None,
    stage_ended: Callable[[StartStage], None] = lambda stage: None,
) -> LoadedEngine:
    """Load the model and allocate its cache. Raises ConfigError with one line.

    `make_compiler` is called with the width of the logits, `stage_ended` when weights and
    cache are there.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = choose_device(config.device)
    precision = choose_precision(config.dtype, device)
    dtype = precision.compute
    progress(f"reading {config.model.name}")
    source = open_weights(config.model)
    max_model_tokens = choose_context(config, source.spec)
    attention = TorchPagedAttention(BLOCK_TOKENS, device)
    kv_format = choose_kv_format(config)
    if kv_format not in attention.capabilities.kv_formats:
        raise ConfigError(
            f"--kv-dtype {config.kv_dtype}: the {attention.capabilities.name} attention cannot "
            "read it; use --kv-dtype auto"
        )
    host_slots = choose_host_slots(config, source.spec, BLOCK_TOKENS, dtype)
    blocks = choose_blocks(config, source.spec, max_model_tokens, BLOCK_TOKENS, dtype, device)
    matrices = choose_matrix_format(config.weights_format, dtype, device)
    with _one_thread():
        decoder = Decoder(
            source, attention, max_model_tokens, precision, device, progress, matrices
        )
    stage_ended(StartStage.WEIGHTS)
    progress(f"allocating {blocks} cache blocks of {BLOCK_TOKENS} tokens")
    cache = make_cache(kv_format, source.spec, blocks, BLOCK_TOKENS, dtype, device)
    host_tier = HostTier(cache, host_slots) if host_slots else None
    stage_ended(StartStage.CACHE)
    compiler = make_compiler(source.spec.vocab) if make_compiler is not None else None
    labels = [precision.label, matrices.label, _KV_LABEL[kv_format]]
    return LoadedEngine(
        executor=TorchExecutor(decoder, cache, clock, config.pipeline_depth, host_tier, compiler),
        spec=source.spec,
        max_model_tokens=max_model_tokens,
        backend=f"{attention.capabilities.name}-{device.type}",
        dtype="; ".join(label for label in labels if label),
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Conversions wait for memory, and the sources have threads of their own: more threads
    here would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def choose_device(wanted: str) -> torch.device:
    """`auto` takes CUDA when there is one. Raises ConfigError when CUDA is asked for in vain."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device; use --device cpu")
    return torch.device("cuda")
