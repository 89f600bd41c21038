"""What the loader gets of a back end: how to read weights, make pages and run plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from service.device.cache.cpu_pool import CpuKvPool
from service.device.cache.kv_cache import KvFormat, Pages
from service.device.sampling.sampler import Sampler
from service.device.sharding.collectives import Collectives
from service.device.step_decoder import StepDecoder
from service.device.torch_executor import DeviceExecutor
from telemetry.facts.clock import Clock

DecoderT = TypeVar("DecoderT", bound=StepDecoder[Any])
PagesT = TypeVar("PagesT", bound=Pages)
Progress = Callable[[str], None]
KV_LABELS = {KvFormat.PLAIN: None, KvFormat.INT8: "int8 KV cache", KvFormat.FP8: "fp8 KV cache"}


@dataclass(frozen=True, slots=True)
class Backend(Generic[DecoderT, PagesT]):
    """A way to compute a model, known before its weights are read.

    `name` says who computes and `dtype` what is stored and computed with, for people and for
    facts. A weight of a matrix takes `weight_bytes` on average, a block of the cache
    `block_bytes` over all layers. `load` reads the weights, `make_pages` allocates so many blocks.
    `make_executor` is None where `TorchExecutor` runs the plans. With `collectives` this is one
    tensor-parallel rank, and what it loads and allocates is its part. `no_states` says why prompts
    cannot be read from final states; empty: the decoder is a `StatesDecoder`. `adapters_fault` says
    why it cannot compute LoRA adapters, None when it can. Products of matrices take as long as if
    their rows filled whole tiles of `tile_rows`; 0: not so, or not known.
    """

    name: str
    dtype: str
    weight_bytes: float
    block_tokens: int
    block_bytes: int
    load: Callable[[], DecoderT]
    make_pages: Callable[[int], PagesT]
    computes_in_torch: bool = False
    make_executor: (
        Callable[[DecoderT, PagesT, Sampler, Clock, CpuKvPool | None], DeviceExecutor] | None
    ) = None
    collectives: Collectives | None = None
    adapters_fault: str | None = None
    no_states: str = ""
    tile_rows: int = 0


# of some decoder and the pages that it reads
AnyBackend = Backend[Any, Any]


def joined(*labels: str | None) -> str:
    """Those that are there, for `Backend.dtype`."""
    return "; ".join(label for label in labels if label)
