"""From a configuration to an executor that is ready to run: what the engine process calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from service.config.settings import ConfigError, EngineConfig
from service.device.backend import AnyBackend
from service.device.backends import choose_backend
from service.device.cache.cpu_pool import CpuKvPool
from service.device.cache.kv_cache import Pages
from service.device.lora.reader import read_adapter
from service.device.lora.weights import AdapterWeights
from service.device.memory import choose_blocks, choose_context, choose_host_slots
from service.device.memory_profile import measure_budget
from service.device.parallel.decoder import ParallelDecoder, with_ranks
from service.device.parallel.ranks import Ranks, closed_on_error
from service.device.sampling.grammar_compiler import GrammarCompiler
from service.device.sampling.sampler import Sampler
from service.device.sharding.shard import floor_shape
from service.device.spec import ModelSpec
from service.device.step_decoder import StepDecoder
from service.device.torch_executor import DeviceExecutor, TorchExecutor
from service.device.weights.source import open_weights
from service.engine.admission import most_step_tokens
from telemetry.facts.clock import Clock
from telemetry.facts.engine_start import ModelShape
from telemetry.facts.reasons import StartStage


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An executor, the cache that it computes with, and what is known about it."""

    executor: DeviceExecutor
    cache: Pages
    spec: ModelSpec
    max_model_tokens: int
    backend: AnyBackend
    pipeline_depth: int
    adapter_dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> ModelShape:
        """What the lower bound of a step's time is computed from."""
        backend = self.backend
        cell_bytes = backend.block_bytes // backend.block_tokens
        if backend.collectives is None:
            return self.spec.shape(backend.weight_bytes, cell_bytes)
        ranks, device = backend.collectives.rank.count, backend.collectives.device
        return floor_shape(self.spec, ranks, device, backend.weight_bytes, cell_bytes)

    @property
    def adapters_fault(self) -> str | None:
        """Why LoRA adapters cannot be placed on the executor; None when they can."""
        return self.backend.adapters_fault

    def read_adapter(self, folder: Path) -> AdapterWeights:
        """A LoRA adapter of this model, for `executor.place_adapter`. May be called by any thread.
        Raises ConfigError."""
        return read_adapter(folder, self.spec, self.adapter_dtype)

    def own_process(self) -> None:
        """For a process that does nothing else: torch's threads, where they only sample, would spin
        for a while after each product on the cores that the decoder's threads need."""
        if not self.backend.computes_in_torch:
            torch.set_num_threads(1)


def load_executor(
    config: EngineConfig,
    clock: Clock,
    progress: Callable[[str], None],
    make_compiler: Callable[[int], GrammarCompiler] | None = None,
    stage_ended: Callable[[StartStage], None] = lambda stage: None,
    rank_lost: Callable[[str], None] = lambda what: None,
) -> LoadedEngine:
    """Load the model and allocate its cache. Raises ConfigError with one line.

    `make_compiler` is called with the width of the logits, `stage_ended` when weights and
    cache are there, `rank_lost` by a thread of its own when another rank has ended.
    """
    _set_threads(config)
    device = choose_device(config.device)
    progress(f"reading {config.model.name}")
    source = open_weights(config.model)
    max_model_tokens = choose_context(config, source.spec)
    backend = choose_backend(config, source, max_model_tokens, device, progress)
    ranks = None
    if backend.collectives is not None:
        ranks = Ranks(config, device, max_model_tokens, rank_lost)
        backend = with_ranks(backend, ranks, clock)
    block_tokens, block_bytes = backend.block_tokens, backend.block_bytes
    with closed_on_error(ranks):
        host_slots = choose_host_slots(config, block_tokens, block_bytes)
        is_measured = device.type == "cuda" and config.kv_bytes is None
        blocks = 0
        if not is_measured:  # what cannot work is refused before the weights are read
            blocks = choose_blocks(config, max_model_tokens, block_tokens, block_bytes)
        with _one_thread():
            decoder = backend.load()
        if is_measured:
            blocks = _measured_blocks(config, backend, decoder, max_model_tokens, progress)
        stage_ended(StartStage.WEIGHTS)
        progress(f"allocating {blocks} cache blocks of {block_tokens} tokens")
        cache = backend.make_pages(blocks)
        cpu_pool = CpuKvPool(cache, host_slots) if host_slots else None
        stage_ended(StartStage.CACHE)
        compiler = make_compiler(source.spec.vocab) if make_compiler is not None else None
        executor = _executor(config, backend, decoder, cache, clock, cpu_pool, compiler)
    return LoadedEngine(
        executor, cache, source.spec, max_model_tokens, backend, _depth(config, backend),
        adapter_dtype=getattr(torch, config.dtype),
    )  # fmt: skip


def _depth(config: EngineConfig, backend: AnyBackend) -> int:
    """A back end with its own executor computes while the next step is planned."""
    return config.depth(overlaps=backend.make_executor is not None)


def _measured_blocks(
    config: EngineConfig,
    backend: AnyBackend,
    decoder: StepDecoder[Any],
    max_model_tokens: int,
    progress: Callable[[str], None],
) -> int:
    """As many as the GPU has memory for. Raises ConfigError."""
    tokens = measured_tokens(config, max_model_tokens)
    budget = measure_budget(decoder, backend.make_pages, tokens, config.max_seqs, decoder.device)
    progress(str(budget))
    cache_bytes = budget.cache_bytes - (config.lora_bytes or 0)
    return choose_blocks(
        config, max_model_tokens, backend.block_tokens, backend.block_bytes, cache_bytes
    )


def measured_tokens(config: EngineConfig, max_model_tokens: int) -> int:
    """Of the step that is measured: the largest that the scheduler may plan."""
    return most_step_tokens(
        config.step_tokens, config.chunked_prefill, max_model_tokens, config.max_seqs
    )


def _set_threads(config: EngineConfig) -> None:
    """Of this process; ranks share what there is."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    elif config.tensor_parallel > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // config.tensor_parallel))


def _executor(
    config: EngineConfig,
    backend: AnyBackend,
    decoder: StepDecoder[Any],
    cache: Pages,
    clock: Clock,
    cpu_pool: CpuKvPool | None,
    compiler: GrammarCompiler | None,
) -> DeviceExecutor:
    if backend.make_executor is None:
        ranks = decoder if isinstance(decoder, ParallelDecoder) else None
        return TorchExecutor(
            decoder, cache, clock, _depth(config, backend), cpu_pool, compiler, ranks
        )
    sampler = Sampler(decoder.spec.vocab, clock, compiler)
    return backend.make_executor(decoder, cache, sampler, clock, cpu_pool)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Conversions are bound by memory, and weight sources have threads of their own."""
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
