"""What a checkpoint costs in quality, and how fast it decodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.quality import BLOCK_TOKENS as PAGE_TOKENS
from benchmarks.quality import (
    CPU,
    DECODE_STEPS,
    LONGEST_TOKENS,
    PAGES,
    DecodeLoad,
    Variant,
)
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import PlainKvCache
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.native.cache import NativeKvCache, native_page_bytes
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.linear import FLOATS, FloatLinear, MatrixFormat
from service.device.quantization.precision import Precision

FP32 = Precision(torch.float32, torch.float32)
_EIGHT_BITS, _FOURTEEN_BITS = 127, 8191


@dataclass
class Quality:
    """The quality of one way to hold and multiply the weights of one checkpoint. `divergence_nats`
    is the mean Kullback-Leibler divergence from the unquantised model, `product_nats` that from the
    same weights in float32: what the product alone costs."""

    checkpoint: str
    product: str
    perplexity: float
    divergence_nats: float
    product_nats: float
    agreement: float
    weight_bytes: float


@dataclass
class Speed:
    """Tokens per second of one round."""

    name: str
    batch: int
    round: int
    tokens_per_s: float


class RoundedRows:
    """Implements `MatrixFormat`: float32 weights times rows that were rounded to whole steps of
    their largest value, of a row (`group` None) or of each `group` inputs, as llama.cpp does."""

    label = None

    def __init__(self, most: int, group: int | None) -> None:
        self._most, self._group = most, group

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> RoundedLinear:
        return RoundedLinear(weight, bias, self._most, self._group or weight.shape[1])

    def table(self, weight: torch.Tensor) -> FloatLinear:
        return FloatLinear(weight)


class RoundedLinear(FloatLinear):
    """A float product of rounded rows."""

    __slots__ = ("_group", "_most")

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, most: int, group: int
    ) -> None:
        super().__init__(weight, bias)
        self._most, self._group = most, group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.reshape(len(x), -1, self._group)
        steps = parts.abs().amax(-1, keepdim=True).clamp_min(1e-12) / self._most
        return super().__call__(((parts / steps).round() * steps).view_as(x))


# how the native decoder rounds rows, and how llama.cpp does
ROW_ROUNDINGS: dict[str, MatrixFormat] = {
    "rows of 14 bits, a scale a row": RoundedRows(_FOURTEEN_BITS, None),
    "rows of 8 bits, a scale each 32": RoundedRows(_EIGHT_BITS, 32),
}


def torch_variant(name: str, source: WeightSource, matrices: MatrixFormat = FLOATS) -> Variant:
    """In float32 throughout."""
    attention = TorchPagedAttention(PAGE_TOKENS, CPU)
    decoder = Decoder(source, attention, LONGEST_TOKENS, FP32, CPU, matrices=matrices)
    cache = PlainKvCache(source.spec, PAGES, PAGE_TOKENS, torch.float32, CPU)
    return Variant(name, decoder, cache, 0)


def native_variant(
    name: str,
    source: WeightSource,
    threads: int,
    weights: NumberKind = NumberKind.BFLOAT16,
    cache: NumberKind = NumberKind.BFLOAT16,
    keeps: bool = True,
) -> Variant:
    """The variant that `--executor native` serves, but for the cache where that is asked for."""
    decoder = NativeDecoder(
        source, LONGEST_TOKENS, weights, cache, torch.bfloat16, threads, keeps=keeps
    )
    pages = NativeKvCache(source.spec, PAGES, cache)
    return Variant(name, decoder, pages, native_page_bytes(source.spec, cache) // PAGE_TOKENS)


def quality_of(
    checkpoint: str,
    product: str,
    logits: torch.Tensor,
    ids: list[int],
    unquantised: torch.Tensor,
    same_weights: torch.Tensor,
    weight_bytes: float,
) -> Quality:
    """The quality of float32 logits [tokens, vocab]."""
    loss = functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    return Quality(
        checkpoint,
        product,
        math.exp(float(loss)),
        divergence(unquantised, logits),
        divergence(same_weights, logits),
        float((logits.argmax(-1) == unquantised.argmax(-1)).float().mean()),
        weight_bytes,
    )


def divergence(truth: torch.Tensor, logits: torch.Tensor) -> float:
    """Mean over positions, in nats."""
    wanted, found = truth.log_softmax(-1), logits.log_softmax(-1)
    return float(functional.kl_div(found, wanted, reduction="batchmean", log_target=True))


def measure_speed(known: list[Variant], batches: tuple[int, ...], rounds: int) -> list[Speed]:
    """Interleaved: every round measures all of them, one after the other."""
    results: list[Speed] = []
    for batch in batches:
        loads = [DecodeLoad(variant, batch) for variant in known]
        for load in loads:
            load.seconds()
        for number in range(1, rounds + 1):
            for load in loads:
                rate = batch * DECODE_STEPS / load.seconds()
                results.append(Speed(load.variant.name, batch, number, rate))
        print(f"decode {batch} done", flush=True)
    return results
