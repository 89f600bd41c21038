"""Torch's own products, with our kernels where there is a GPU; one rank of several, or alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from service.config.settings import ConfigError, EngineConfig
from service.device.attention.base import GraphAttention
from service.device.attention_choice import Chosen, choose_attention, triton_fault
from service.device.backend import KV_LABELS, Backend, Progress, joined
from service.device.cache.cpu_pool import CpuKvPool
from service.device.cache.kv_cache import KvCache, KvFormat, make_cache, page_bytes
from service.device.lora.reader import MOST_RANK
from service.device.lora.torch_adapters import DecoderAdapters
from service.device.memory import choose_kv_format
from service.device.models.matrices import kept_kinds
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.quantization.linear import WHOLE, MatrixFormat
from service.device.quantization.matrix_format import choose_matrix_format
from service.device.quantization.precision import Precision, choose_precision
from service.device.sampling.sampler import Sampler
from service.device.sharding.collectives import Collectives, refuse_impossible
from service.device.sharding.shard import ShardedWeights, TensorParallelRank
from service.device.torch_executor import DeviceExecutor
from service.device.weights.kept_summary import summarize
from telemetry.facts.clock import Clock

_RANKS_ADAPTERS_FAULT = "tensor-parallel ranks compute no LoRA adapters; use --tensor-parallel 1"


@dataclass(frozen=True, slots=True)
class _Parts:
    """What was chosen for one rank: its weights, how they are stored and multiplied, and what
    attends. `graph_attention` is None where decode steps are not captured."""

    config: EngineConfig
    source: WeightSource
    collectives: Collectives | None
    max_tokens: int
    device: torch.device
    precision: Precision
    chosen: Chosen
    matrices: MatrixFormat
    kv_format: KvFormat
    progress: Progress

    @property
    def graph_attention(self) -> GraphAttention | None:
        """A captured step that reduces over ranks is not there yet; one that goes through experts
        asks the host how many rows each has."""
        if self.collectives is not None or self.source.spec.experts is not None:
            return None
        return self.chosen.graph_attention

    @property
    def page_tokens(self) -> int:
        return self.chosen.attention.capabilities.page_tokens

    @property
    def name(self) -> str:
        name = f"{self.chosen.attention.capabilities.name}-{self.device.type}"
        if self.collectives is not None:
            name += f" x{self.collectives.rank.count}"
        return name

    def load(self) -> Decoder:
        return Decoder(
            self.source, self.chosen.attention, self.max_tokens, self.precision, self.device,
            self.progress, self.matrices, self.chosen.ops, self.collectives or WHOLE,
            self._adapters(),
        )  # fmt: skip

    def _adapters(self) -> DecoderAdapters | None:
        """With our kernels, where the other products of a layer have them."""
        spec, device = self.source.spec, self.device
        if self.config.lora_bytes is None or triton_fault(spec, device) is not None:
            return None
        from service.device.lora.triton_adapters import TritonAdapters

        return TritonAdapters(spec, self.precision.compute, device, MOST_RANK)

    def make_pages(self, blocks: int) -> KvCache:
        # padding of captured batches writes to a page of its own
        spare = 0 if self.graph_attention is None else 1
        return make_cache(
            self.kv_format, self.source.spec, blocks + spare, self.page_tokens,
            self.precision.compute, self.device,
        )  # fmt: skip

    def make_executor(
        self,
        decoder: Decoder,
        pages: KvCache,
        sampler: Sampler,
        clock: Clock,
        cpu_pool: CpuKvPool | None,
    ) -> DeviceExecutor:
        from service.device.cuda.executor import cuda_executor

        attention = self.graph_attention
        assert attention is not None, "its decode steps are not captured"
        return cuda_executor(
            decoder, attention, pages, sampler, clock, cpu_pool, self.config.max_seqs,
            self.max_tokens, self.progress, self.config.lora_bytes is not None,
        )  # fmt: skip


def torch_backend(
    config: EngineConfig,
    source: WeightSource,
    max_tokens: int,
    device: torch.device,
    progress: Progress,
    note: str | None = None,
    rank: int = 0,
) -> Backend[Decoder, KvCache]:
    """`note` says why faster back ends are not used. Raises ConfigError."""
    source, collectives = _share(config, source, device, rank)
    precision = choose_precision(config.dtype, device)
    dtype = precision.compute
    parts = _Parts(
        config=config,
        source=source,
        collectives=collectives,
        max_tokens=max_tokens,
        device=device,
        precision=precision,
        chosen=choose_attention(config, source.spec, device),
        matrices=choose_matrix_format(config.weights_format, dtype, device),
        kv_format=choose_kv_format(config),
        progress=progress,
    )
    plain_bytes = 1 if config.weights_format in ("int8", "fp8") else dtype.itemsize
    kept = summarize(source, kept_kinds(parts.matrices), plain_bytes)
    faults = joined(note, parts.chosen.fault)
    return Backend(
        name=f"{parts.name} ({faults})" if faults else parts.name,
        dtype=joined(precision.label, kept.label, parts.matrices.label, KV_LABELS[parts.kv_format]),
        weight_bytes=kept.weight_bytes,
        block_tokens=parts.page_tokens,
        block_bytes=page_bytes(source.spec, parts.page_tokens, dtype, parts.kv_format),
        load=parts.load,
        make_pages=parts.make_pages,
        computes_in_torch=True,
        make_executor=None if parts.graph_attention is None else parts.make_executor,
        collectives=collectives,
        adapters_fault=None if collectives is None else _RANKS_ADAPTERS_FAULT,
        no_states="" if collectives is None else "not with --tensor-parallel above 1",
    )


def _share(
    config: EngineConfig, source: WeightSource, device: torch.device, rank: int
) -> tuple[WeightSource, Collectives | None]:
    """What `rank` computes with; all of it where it is alone. Raises ConfigError."""
    if config.tensor_parallel == 1:
        return source, None
    refuse_impossible(config, device)
    if config.lora_bytes is not None:
        raise ConfigError(f"--lora-memory: {_RANKS_ADAPTERS_FAULT}")
    place = TensorParallelRank(rank, config.tensor_parallel)
    return ShardedWeights(source, place), Collectives(place, device)
