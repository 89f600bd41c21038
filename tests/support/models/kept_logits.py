"""Logits of a source of weights, kept or widened, by either decoder."""

from __future__ import annotations

import torch

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import PlainKvCache
from service.device.inputs import SequenceSpan, StepInputs
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.native.cache import NativeKvCache
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.matrix_format import choose_matrix_format
from service.device.quantization.precision import Precision

CPU = torch.device("cpu")
FP32 = Precision(torch.float32, torch.float32)
# of logits, from rows of 14 bits in two layers whose weights are all random
INTEGER_ERROR = 2e-3
PAGE_TOKENS, PAGES, MOST_TOKENS = 16, 8, 256


def step(tokens: int, vocab: int) -> StepInputs:
    """One prompt of so many tokens, all sampled."""
    places = torch.arange(tokens)
    ids = (places * 7 + 3) % vocab
    span = SequenceSpan(0, tokens, 0, tuple(range(-(-tokens // PAGE_TOKENS))))
    decodes, prefills = ((span,), ()) if tokens == 1 else ((), (span,))
    return StepInputs(ids, places, places, places, decodes, prefills)


def torch_logits(source: WeightSource, weights: str, tokens: int) -> torch.Tensor:
    matrices = choose_matrix_format(weights, torch.float32, CPU)
    attention = TorchPagedAttention(PAGE_TOKENS, CPU)
    decoder = Decoder(source, attention, MOST_TOKENS, FP32, CPU, matrices=matrices)
    cache = PlainKvCache(source.spec, PAGES, PAGE_TOKENS, torch.float32, CPU)
    return decoder.forward(step(tokens, source.spec.vocab), cache)


def native_logits(source: WeightSource, tokens: int, threads: int = 2) -> torch.Tensor:
    kind = NumberKind.FLOAT32
    decoder = NativeDecoder(source, MOST_TOKENS, kind, kind, torch.float32, threads, keeps=True)
    return decoder.forward(step(tokens, source.spec.vocab), NativeKvCache(source.spec, PAGES, kind))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
