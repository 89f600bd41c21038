"""Each attention back end beside float32 SDPA, on random pages with poisoned outputs, and how
long it takes over batch and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu.timing import timed_ms
from service.device.attention.base import AttentionBackend
from service.device.cuda.runtime import Runtime
from service.device.inputs import SequenceSpan, StepInputs
from service.device.kv_cache import PlainKvCache
from service.device.spec import ModelSpec


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
        """Of both products of one layer, where the mask lets anything through."""
        pairs = sum(count * (context + (count + 1) / 2) for count, context in self.rows)
        return 4.0 * pairs * spec.q_size


class Bench:
    """One back end on one shape of a model, of which there is one layer."""

    def __init__(
        self, backend: AttentionBackend, spec: ModelSpec, dtype: torch.dtype, runtime: Runtime
    ) -> None:
        self._backend, self._spec, self._dtype, self._runtime = backend, spec, dtype, runtime

    def relative_error(self, batch: Batch, seed: int) -> float:
        """The largest difference over the largest value; infinite where nothing was written."""
        query, cache, spans = self._inputs(batch, seed)
        prepared = self._backend.prepare(_inputs_of(spans))
        torch.full_like(query, float("nan"))  # what is not written may show this
        found = self._backend.run(query, 0, cache, prepared).float()
        wanted = torch.cat([self._reference(query, cache, span) for span in spans])
        if not bool(torch.isfinite(found).all()):
            return float("inf")
        return float((found - wanted).abs().max() / wanted.abs().max())

    def time_ms(self, batch: Batch, rounds: int) -> dict[str, float]:
        query, cache, spans = self._inputs(batch, 0)
        prepared = self._backend.prepare(_inputs_of(spans))
        return timed_ms(self._runtime, lambda: self._backend.run(query, 0, cache, prepared), rounds)

    def _inputs(
        self, batch: Batch, seed: int
    ) -> tuple[torch.Tensor, PlainKvCache, list[SequenceSpan]]:
        page = self._backend.capabilities.page_tokens
        draw, device = Random(seed), self._runtime.device
        source = torch.Generator().manual_seed(seed)
        pages = batch.pages(page) + 3
        cache = PlainKvCache(replace(self._spec, layers=1), pages, page, self._dtype, device)
        for side in (cache.keys[0], cache.values[0]):
            side.copy_(torch.randn(side.shape, generator=source))
        free = draw.sample(range(pages), pages)
        spans, begin = list[SequenceSpan](), 0
        for count, context in batch.rows:
            blocks = tuple(free.pop() for _ in range(-(-(count + context) // page)))
            spans.append(SequenceSpan(begin, count, context, blocks))
            begin += count
        shape = (begin, self._spec.heads, self._spec.head_dim)
        query = torch.randn(shape, generator=source).to(device, self._dtype)
        return query, cache, spans

    def _reference(
        self, query: torch.Tensor, cache: PlainKvCache, span: SequenceSpan
    ) -> torch.Tensor:
        end = span.begin + span.query_tokens
        pages = torch.tensor(span.blocks, device=query.device)
        key, value = (
            side[pages].flatten(0, 1)[: span.context_tokens + span.query_tokens].float()
            for side in (cache.keys[0], cache.values[0])
        )
        shape = (span.query_tokens, span.context_tokens + span.query_tokens)
        mask = torch.ones(shape, dtype=torch.bool, device=query.device)
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


def _inputs_of(spans: Sequence[SequenceSpan]) -> StepInputs:
    nothing = torch.empty(0, dtype=torch.int64)
    return StepInputs(
        token_ids=nothing,
        positions=nothing,
        cells=nothing,
        sampled=nothing,
        decodes=tuple(span for span in spans if span.query_tokens == 1),
        prefills=tuple(span for span in spans if span.query_tokens > 1),
    )
