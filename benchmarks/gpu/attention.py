"""Each attention back end beside float32 SDPA, on random pages with poisoned outputs, and how
long it takes over batch and context."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu.timing import timed_ms
from service.device.attention.base import AttentionBackend
from service.device.attention.flash_paged import FlashPagedAttention
from service.device.attention.flash_providers import find_provider
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.attention.triton_paged import TritonPagedAttention
from service.device.cache.kv_cache import KvCache, KvFormat, make_cache
from service.device.cuda.runtime import Runtime
from service.device.inputs import SequenceSpan, StepInputs
from service.device.spec import ModelSpec

_TRITON_PAGE_TOKENS, _TORCH_PAGE_TOKENS = 64, 16


def backends(
    spec: ModelSpec, device: torch.device, dtype: torch.dtype
) -> tuple[list[AttentionBackend], dict[str, str]]:
    """All that can compute here, the fastest first, and why others cannot."""
    found: list[AttentionBackend] = []
    faults: dict[str, str] = {}
    provider, fault = find_provider()
    if device.type != "cuda" or dtype is torch.float32:
        faults["flash"] = "its kernels need a GPU, and 16 bits"
    elif provider is None:
        faults["flash"] = fault
    else:
        found.append(FlashPagedAttention(provider, device))
    found.append(TritonPagedAttention(spec, _TRITON_PAGE_TOKENS, device))
    found.append(TorchPagedAttention(_TORCH_PAGE_TOKENS, device))
    return found, faults


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with so many queries behind so much context each."""

    rows: tuple[tuple[int, int], ...]

    @property
    def queries(self) -> int:
        return sum(count for count, _ in self.rows)

    def pages(self, page_tokens: int) -> int:
        return sum(-(-(count + context) // page_tokens) for count, context in self.rows)

    def read_bytes(self, spec: ModelSpec, itemsize: int) -> int:
        """Keys and values that have to be read once, of one layer."""
        cells = sum(count + context for count, context in self.rows)
        return 2 * cells * spec.kv_size * itemsize

    def flop(self, spec: ModelSpec) -> float:
        """The operations of both products of one layer, where the mask lets anything through."""
        pairs = sum(count * (context + (count + 1) / 2) for count, context in self.rows)
        return 4.0 * pairs * spec.q_size


class Bench:
    """One back end on one shape of a model, of which there is one layer, and one format of keys
    and values."""

    def __init__(
        self,
        backend: AttentionBackend,
        spec: ModelSpec,
        dtype: torch.dtype,
        runtime: Runtime,
        kv_format: KvFormat = KvFormat.PLAIN,
    ) -> None:
        self._backend, self._spec, self._dtype, self._runtime = backend, spec, dtype, runtime
        self._kv_format = kv_format

    def relative_error(self, batch: Batch, seed: int) -> float:
        """The largest difference over the largest value; infinite where nothing was written."""
        query, cache, spans = self._inputs(batch, seed)
        prepared = self._backend.prepare(_inputs_of(spans))
        with _poisoned():
            found = self._backend.run(query, 0, cache, prepared).float()
        wanted = torch.cat([self._reference(query, cache, span) for span in spans])
        if not bool(torch.isfinite(found).all()):
            return float("inf")
        return float((found - wanted).abs().max() / wanted.abs().max())

    def time_ms(self, batch: Batch, rounds: int, before: Any = None) -> dict[str, float]:
        query, cache, spans = self._inputs(batch, 0)
        prepared = self._backend.prepare(_inputs_of(spans))

        def run() -> torch.Tensor:
            return self._backend.run(query, 0, cache, prepared)

        return timed_ms(self._runtime, run, rounds, before=before)

    def _inputs(self, batch: Batch, seed: int) -> tuple[torch.Tensor, KvCache, list[SequenceSpan]]:
        page = self._backend.capabilities.page_tokens
        device, spec = self._runtime.device, self._spec
        source = torch.Generator(device).manual_seed(seed)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=source, device=device).to(self._dtype)

        pages = batch.pages(page) + 3
        layer = replace(spec, layers=1)
        cache = make_cache(self._kv_format, layer, pages, page, self._dtype, device)
        keys, values = (drawn(pages * page, spec.kv_heads, spec.head_dim) for _ in range(2))
        cache.write(0, keys, values, torch.arange(pages * page, device=device))
        free = Random(seed).sample(range(pages), pages)
        spans, begin = list[SequenceSpan](), 0
        for count, context in batch.rows:
            blocks = tuple(free.pop() for _ in range(-(-(count + context) // page)))
            spans.append(SequenceSpan(begin, count, context, blocks))
            begin += count
        return drawn(begin, spec.heads, spec.head_dim), cache, spans

    def _reference(self, query: torch.Tensor, cache: KvCache, span: SequenceSpan) -> torch.Tensor:
        """Over what the cache gives back, so that its own rounding counts for nothing."""
        end, tokens = span.begin + span.query_tokens, span.context_tokens + span.query_tokens
        pages = torch.tensor(span.blocks, device=query.device)
        key, value = (side.flatten(0, 1)[:tokens].float() for side in cache.gather(0, pages))
        mask = torch.ones((span.query_tokens, tokens), dtype=torch.bool, device=query.device)
        found = functional.scaled_dot_product_attention(
            query[span.begin : end].float().transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            attn_mask=mask.tril(diagonal=span.context_tokens),
            enable_gqa=True,
        )
        return found[0].transpose(0, 1)


def random_batches(count: int, seed: int, longest: int) -> list[Batch]:
    """Decodes alone, prompts alone, chunks behind context, and all of them together."""
    draw, found = Random(seed), list[Batch]()
    for number in range(count):
        singles = [(1, draw.randrange(longest)) for _ in range(draw.randint(1, 5))]
        prompts = [(draw.randint(2, longest), 0) for _ in range(draw.randint(1, 2))]
        chunks = [
            (draw.randint(2, longest // 2), draw.randrange(longest))
            for _ in range(draw.randint(1, 2))
        ]
        kinds: Sequence[Any] = (singles, prompts, chunks, [*singles, *prompts, *chunks])
        found.append(Batch(tuple(kinds[number % len(kinds)])))
    return found


@contextmanager
def _poisoned() -> Iterator[None]:
    """Memory that torch allocates is NaN, so that an output that is not written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def _inputs_of(spans: Sequence[SequenceSpan]) -> StepInputs:
    nothing = torch.empty(0, dtype=torch.int64)
    return StepInputs(
        token_ids=nothing,
        positions=nothing,
        slot_mapping=nothing,
        sampled=nothing,
        decodes=tuple(span for span in spans if span.query_tokens == 1),
        prefills=tuple(span for span in spans if span.query_tokens > 1),
    )
