"""What can compute a model, and which of them this machine gets.

A back end is known before weights are read: how large its pages are decides how many fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from service.config.settings import ConfigError, EngineConfig
from service.device.backend import KV_LABELS, AnyBackend, Backend, Progress, joined
from service.device.cache.kv_cache import KvFormat
from service.device.memory import choose_kv_format
from service.device.models.weight_source import WeightSource
from service.device.native.build import NoNativeLibrary, library_path
from service.device.native.cache import PAGE_TOKENS, NativeKvCache, native_page_bytes
from service.device.native.decoder import NativeDecoder, unsupported
from service.device.native.kept_weights import unsupported_forms
from service.device.native.library import NumberKind
from service.device.openvino.cache import OpenVinoKvCache
from service.device.openvino.decoder import OpenVinoDecoder, OpenVinoSettings, build_openvino
from service.device.openvino.graph import WeightStorage
from service.device.openvino.runtime import tile_rows
from service.device.quantization.kept_formats import KERNELS, WeightsBackend
from service.device.quantization.precision import cpu_multiplies_bf16
from service.device.torch_backend import torch_backend
from service.device.weights.kept_summary import summarize

_OPENVINO_ADAPTERS_FAULT = (
    "OpenVINO's graph computes no LoRA adapters; use --executor native or torch"
)


def choose_backend(
    config: EngineConfig,
    source: WeightSource,
    max_tokens: int,
    device: torch.device,
    progress: Progress,
) -> AnyBackend:
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


def native_backend(
    config: EngineConfig, source: WeightSource, max_tokens: int, progress: Progress
) -> Backend[NativeDecoder, NativeKvCache]:
    """The C++ decoder: weights and cache as stored, float32 in between.

    Raises NoNativeLibrary.
    """
    library_path(progress)
    reason = unsupported(source.spec)
    if reason is not None:
        raise NoNativeLibrary(reason)
    spec = source.spec
    plain = NumberKind.BFLOAT16 if config.dtype == "bfloat16" else NumberKind.FLOAT32
    weights = NumberKind.INT8 if config.weights_format == "int8" else plain
    kv_format = choose_kv_format(config)
    pages = NumberKind.INT8 if kv_format is KvFormat.INT8 else plain
    rounding = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32

    keeps = config.weights_format == "auto"
    plain_bytes = {NumberKind.FLOAT32: 4, NumberKind.BFLOAT16: 2, NumberKind.INT8: 1}[weights]
    kept = summarize(source, KERNELS[WeightsBackend.NATIVE] if keeps else (), plain_bytes)
    reason = unsupported_forms(kept.forms)
    if reason is not None:
        raise NoNativeLibrary(reason)

    def load() -> NativeDecoder:
        return NativeDecoder(
            source, max_tokens, weights, pages, rounding, config.threads, progress, keeps
        )

    return Backend(
        name="native-cpu",
        dtype=joined(
            config.dtype if plain is NumberKind.FLOAT32 else f"{config.dtype}, computed in float32",
            "int8 weights" if weights is NumberKind.INT8 else None,
            kept.label,
            KV_LABELS[kv_format],
        ),
        weight_bytes=kept.weight_bytes,
        block_tokens=PAGE_TOKENS,
        block_bytes=native_page_bytes(spec, pages),
        load=load,
        make_pages=lambda blocks: NativeKvCache(spec, blocks, pages),
    )


def openvino_backend(
    config: EngineConfig, source: WeightSource, max_tokens: int, progress: Progress
) -> Backend[OpenVinoDecoder, OpenVinoKvCache]:
    """The OpenVINO runtime; compiled here, since it decides the pages. Raises ConfigError."""
    if config.lora_bytes is not None:
        raise ConfigError(f"--lora-memory: {_OPENVINO_ADAPTERS_FAULT}")
    rounding = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    int8 = config.weights_format == "int8"
    settings = OpenVinoSettings(
        rounding=rounding,
        weight_storage=WeightStorage.INT8 if int8 else None,
        kv_format=choose_kv_format(config),
        threads=config.threads,
    )
    kept = summarize(source, KERNELS[WeightsBackend.OPENVINO], 1 if int8 else rounding.itemsize)
    decoder = build_openvino(source, max_tokens, settings, progress)
    layout = decoder.layout
    return Backend(
        name="openvino-cpu",
        dtype=joined(
            decoder.label,
            kept.label,
            "int8 weights" if int8 else None,
            KV_LABELS[settings.kv_format],
        ),
        weight_bytes=kept.weight_bytes,
        block_tokens=layout.page_tokens,
        block_bytes=layout.page_bytes,
        load=lambda: decoder,
        make_pages=decoder.make_cache,
        adapters_fault=_OPENVINO_ADAPTERS_FAULT,
        tile_rows=tile_rows(),
        no_states="OpenVINO's graph gives logits only; use --executor native or torch",
    )


_NAMED: dict[str, Callable[[EngineConfig, WeightSource, int, Progress], AnyBackend]] = {
    "native": native_backend,
    "openvino": openvino_backend,
}
