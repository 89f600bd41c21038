"""From a configuration to an executor that is ready to run: what the engine process calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from service.config import ConfigError, EngineConfig
from service.device.backends import Backend, choose_backend
from service.device.grammar_compiler import GrammarCompiler
from service.device.host_tier import HostTier
from service.device.kv_cache import Pages
from service.device.memory import choose_blocks, choose_context, choose_host_slots
from service.device.sampler import Sampler
from service.device.spec import ModelSpec
from service.device.torch_executor import DeviceExecutor, StepDecoder, TorchExecutor
from service.device.weights.source import open_weights
from telemetry.clock import Clock
from telemetry.engine_records import ModelShape
from telemetry.reasons import StartStage


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An executor and what is known about it."""

    executor: DeviceExecutor
    spec: ModelSpec
    max_model_tokens: int
    backend: Backend

    @property
    def shape(self) -> ModelShape:
        """What the floor of a step is worked out from."""
        backend = self.backend
        return self.spec.shape(backend.weight_bytes, backend.block_bytes // backend.block_tokens)

    def own_process(self) -> None:
        """For a process that does nothing else: threads of torch that only sample would spin
        for a while after each product, on the very cores that the decoder's threads need."""
        if not self.backend.computes_in_torch:
            torch.set_num_threads(1)


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
    progress(f"reading {config.model.name}")
    source = open_weights(config.model)
    max_model_tokens = choose_context(config, source.spec)
    backend = choose_backend(config, source, max_model_tokens, device, progress)
    block_tokens, block_bytes = backend.block_tokens, backend.block_bytes
    host_slots = choose_host_slots(config, block_tokens, block_bytes)
    blocks = choose_blocks(config, max_model_tokens, block_tokens, block_bytes, device)
    with _one_thread():
        decoder = backend.load()
    stage_ended(StartStage.WEIGHTS)
    progress(f"allocating {blocks} cache blocks of {block_tokens} tokens")
    cache = backend.make_pages(blocks)
    host_tier = HostTier(cache, host_slots) if host_slots else None
    stage_ended(StartStage.CACHE)
    compiler = make_compiler(source.spec.vocab) if make_compiler is not None else None
    return LoadedEngine(
        executor=_executor(config, backend, decoder, cache, clock, host_tier, compiler),
        spec=source.spec,
        max_model_tokens=max_model_tokens,
        backend=backend,
    )


def _executor(
    config: EngineConfig,
    backend: Backend,
    decoder: StepDecoder[Any],
    cache: Pages,
    clock: Clock,
    host_tier: HostTier | None,
    compiler: GrammarCompiler | None,
) -> DeviceExecutor:
    if backend.make_executor is None:
        return TorchExecutor(decoder, cache, clock, config.pipeline_depth, host_tier, compiler)
    sampler = Sampler(decoder.spec.vocab, clock, compiler)
    return backend.make_executor(decoder, cache, sampler, clock, host_tier)


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
