"""What can compute a model, and which of them this machine gets.

A back end is known before weights are read: how large its pages are decides how many fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from service.config.settings import ConfigError, EngineConfig
from service.device.attention_choice import choose_attention
from service.device.cache.cpu_pool import HostTier
from service.device.cache.kv_cache import KvFormat, Pages, make_cache, page_bytes
from service.device.memory import choose_kv_format
from service.device.models.model import Decoder
from service.device.native.build import NoNativeLibrary, library_path
from service.device.native.cache import PAGE_TOKENS, NativeKvCache, native_page_bytes
from service.device.native.decoder import NativeDecoder, native_spec_fault
from service.device.native.library import NumberKind
from service.device.openvino.decoder import OpenVinoSettings, build_openvino
from service.device.openvino.graph import Hold
from service.device.quantization.linear import WHOLE
from service.device.quantization.precision import choose_precision, cpu_multiplies_bf16
from service.device.quantization.quantize import choose_matrix_format
from service.device.sampling.sampler import Sampler
from service.device.sharding.collectives import Collectives, refuse_impossible
from service.device.sharding.shard import Rank, ShardedWeights
from service.device.torch_executor import DeviceExecutor, StepDecoder
from service.device.weights.source import WeightSource
from telemetry.facts.clock import Clock

Progress = Callable[[str], None]
# of a decoder, its pages, a sampler and a clock, where plans are run by an executor of its own
MakeExecutor = Callable[[StepDecoder[Any], Pages, Sampler, Clock, HostTier | None], DeviceExecutor]
_KV_LABEL = {KvFormat.PLAIN: None, KvFormat.INT8: "int8 KV cache", KvFormat.FP8: "fp8 KV cache"}


@dataclass(frozen=True, slots=True)
class Backend:
    """`load` reads the weights; `make_pages` allocates so many blocks. `dtype` says what is
    stored and computed with, and `name` who computes, for people and for facts; a weight of a
    matrix takes `weight_bytes`. With `collectives` it is one rank of several, and what it loads
    and allocates is its part."""

    name: str
    dtype: str
    weight_bytes: int
    block_tokens: int
    block_bytes: int
    load: Callable[[], StepDecoder[Any]]
    make_pages: Callable[[int], Pages]
    computes_in_torch: bool = False
    make_executor: MakeExecutor | None = None
    collectives: Collectives | None = None


def choose_backend(
    config: EngineConfig,
    source: WeightSource,
    max_tokens: int,
    device: torch.device,
    progress: Progress,
) -> Backend:
    """The back end that was asked for, or the fastest that works. Raises ConfigError.

    On a CPU with bf16 matrix instructions OpenVINO uses them and our C++ does not; without
    them our C++ is the fastest that was measured.
    """
    wanted = config.executor
    if wanted != "torch" and device.type == "cpu":
        _refuse_what_only_torch_has(config)
    if wanted == "torch" or (wanted == "auto" and device.type != "cpu"):
        return torch_backend(config, source, max_tokens, device, progress)
    if device.type != "cpu":
        raise ConfigError(f"--executor {wanted} computes on a CPU; use --device cpu")
    if wanted != "auto":
        try:
            return _NAMED[wanted](config, source, max_tokens, progress)
        except NoNativeLibrary as error:
            raise ConfigError(f"--executor native: {error}; or use --executor auto") from error
    bf16_products = config.dtype == "bfloat16" and cpu_multiplies_bf16()
    faults: list[str] = []
    for name in ("openvino", "native") if bf16_products else ("native", "openvino"):
        try:
            found = _NAMED[name](config, source, max_tokens, progress)
        except (NoNativeLibrary, ConfigError) as error:
            faults.append(f"not {name}: {error}")
        else:
            return replace(found, name=" ".join([found.name, *(f"({f})" for f in faults)]))
    return torch_backend(config, source, max_tokens, device, progress, note="; ".join(faults))


def _refuse_what_only_torch_has(config: EngineConfig) -> None:
    for flag, value, only in (
        ("--attention", config.attention, ("flash", "triton", "torch")),
        ("--weights", config.weights_format, ("fp8",)),
        ("--kv-dtype", config.kv_dtype, ("fp8",)),
    ):
        if value in only:
            raise ConfigError(f"{flag} {value} is for torch's executor; add --executor torch")
    if config.tensor_parallel > 1:
        raise ConfigError("--tensor-parallel is for torch's executor; add --executor torch")


def torch_backend(
    config: EngineConfig,
    source: WeightSource,
    max_tokens: int,
    device: torch.device,
    progress: Progress,
    note: str | None = None,
    rank: int = 0,
) -> Backend:
    """Torch's own products, with our kernels where there is a GPU; of several ranks one, whose
    steps are computed eagerly. Raises ConfigError."""
    source, collectives = _share(config, source, device, rank)
    spec = source.spec
    precision = choose_precision(config.dtype, device)
    chosen = choose_attention(config, spec, device)
    attention, page_tokens = chosen.attention, chosen.attention.capabilities.page_tokens
    kv_format = choose_kv_format(config)
    dtype = precision.compute
    matrices = choose_matrix_format(config.weights_format, dtype, device)
    has_graphs = chosen.has_graphs and collectives is None
    # padding of captured batches writes to a page of its own
    spare = 1 if has_graphs else 0

    def load() -> StepDecoder[Any]:
        return Decoder(
            source, attention, max_tokens, precision, device, progress, matrices, chosen.ops,
            collectives or WHOLE,
        )  # fmt: skip

    def make_pages(blocks: int) -> Pages:
        return make_cache(kv_format, spec, blocks + spare, page_tokens, dtype, device)

    def make_executor(
        decoder: StepDecoder[Any],
        pages: Pages,
        sampler: Sampler,
        clock: Clock,
        host_tier: HostTier | None,
    ) -> DeviceExecutor:
        from service.device.cuda.executor import cuda_executor

        rows = config.max_seqs
        return cuda_executor(
            decoder, attention, pages, sampler, clock, host_tier, rows, max_tokens, progress
        )

    name = f"{attention.capabilities.name}-{device.type}"
    if collectives is not None:
        name += f" x{collectives.rank.count}"
    faults = "; ".join(fault for fault in (note, chosen.fault) if fault)
    return Backend(
        name=f"{name} ({faults})" if faults else name,
        dtype=_labels(precision.label, matrices.label, _KV_LABEL[kv_format]),
        weight_bytes=1 if config.weights_format != "auto" else dtype.itemsize,
        block_tokens=page_tokens,
        block_bytes=page_bytes(spec, page_tokens, dtype, kv_format),
        load=load,
        make_pages=make_pages,
        computes_in_torch=True,
        make_executor=make_executor if has_graphs else None,
        collectives=collectives,
    )


def _share(
    config: EngineConfig, source: WeightSource, device: torch.device, rank: int
) -> tuple[WeightSource, Collectives | None]:
    """What `rank` computes with; all of it where it is alone. Raises ConfigError."""
    if config.tensor_parallel == 1:
        return source, None
    refuse_impossible(config, device)
    place = Rank(rank, config.tensor_parallel)
    return ShardedWeights(source, place), Collectives(place, device)


def native_backend(
    config: EngineConfig, source: WeightSource, max_tokens: int, progress: Progress
) -> Backend:
    """The C++ decoder: weights and cache as stored, float32 in between.

    Raises NoNativeLibrary.
    """
    library_path(progress)
    fault = native_spec_fault(source.spec)
    if fault is not None:
        raise NoNativeLibrary(fault)
    spec = source.spec
    plain = NumberKind.BFLOAT16 if config.dtype == "bfloat16" else NumberKind.FLOAT32
    weights = NumberKind.INT8 if config.weights_format == "int8" else plain
    kv_format = choose_kv_format(config)
    pages = NumberKind.INT8 if kv_format is KvFormat.INT8 else plain
    rounding = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32

    def load() -> StepDecoder[Any]:
        return NativeDecoder(source, max_tokens, weights, pages, rounding, config.threads, progress)

    return Backend(
        name="native-cpu",
        dtype=_labels(
            config.dtype if plain is NumberKind.FLOAT32 else f"{config.dtype}, computed in float32",
            "int8 weights" if weights is NumberKind.INT8 else None,
            _KV_LABEL[kv_format],
        ),
        weight_bytes={NumberKind.FLOAT32: 4, NumberKind.BFLOAT16: 2, NumberKind.INT8: 1}[weights],
        block_tokens=PAGE_TOKENS,
        block_bytes=native_page_bytes(spec, pages),
        load=load,
        make_pages=lambda blocks: NativeKvCache(spec, blocks, pages),
    )


def openvino_backend(
    config: EngineConfig, source: WeightSource, max_tokens: int, progress: Progress
) -> Backend:
    """The OpenVINO runtime; compiled here, since it decides the pages. Raises ConfigError."""
    rounding = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    int8 = config.weights_format == "int8"
    settings = OpenVinoSettings(
        rounding=rounding,
        hold=Hold.INT8 if int8 else None,
        kv_format=choose_kv_format(config),
        threads=config.threads,
    )
    decoder = build_openvino(source, max_tokens, settings, progress)
    layout = decoder.layout
    return Backend(
        name="openvino-cpu",
        dtype=_labels(
            decoder.label, "int8 weights" if int8 else None, _KV_LABEL[settings.kv_format]
        ),
        weight_bytes=1 if int8 else rounding.itemsize,
        block_tokens=layout.page_tokens,
        block_bytes=layout.page_bytes,
        load=lambda: decoder,
        make_pages=decoder.make_cache,
    )


_NAMED = {"native": native_backend, "openvino": openvino_backend}


def _labels(*labels: str | None) -> str:
    return "; ".join(label for label in labels if label)
