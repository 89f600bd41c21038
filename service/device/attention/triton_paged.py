"""Attention by our own Triton kernels: the default on a GPU, needs nothing but torch's Triton.

Rows with one query are cut into parts, so that a long context keeps the whole device busy; all
others go through one kernel together, whatever their lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from service.device.attention.base import Capabilities
from service.device.cache.kv_cache import KvCache, KvFormat
from service.device.inputs import SequenceSpan, StepInputs
from service.device.pinned import on_device
from service.device.spec import EVERYTHING, ModelSpec, Reach
from service.device.triton.attention import (
    Heads,
    Sequences,
    Singles,
    attend_sequences,
    attend_singles,
    parts_for,
    tiles_of,
)

_INTERPRETED_PROCESSORS = 4


@dataclass(frozen=True, slots=True)
class _Prepared:
    singles: Singles | None
    sequences: Sequences | None


class TritonPagedAttention:
    """Implements `GraphAttention` on CUDA, and on a CPU under Triton's interpreter."""

    def __init__(self, spec: ModelSpec, page_tokens: int, device: torch.device) -> None:
        self._shape = Heads(spec.heads, spec.kv_heads, spec.head_dim)
        self._page_tokens = page_tokens
        self._device = device
        self._processors = _INTERPRETED_PROCESSORS
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="triton",
            page_tokens=self._page_tokens,
            devices=("cuda",),
            dtypes=(torch.float32, torch.float16, torch.bfloat16),
            kv_formats=tuple(KvFormat),
            mixed_batch=True,
        )

    def prepare(self, inputs: StepInputs) -> _Prepared:
        return _Prepared(
            self._singles(inputs.decodes) if inputs.decodes else None,
            self._sequences(inputs.prefills) if inputs.prefills else None,
        )

    def prepare_decodes(self, table: torch.Tensor, lengths: torch.Tensor) -> _Prepared:
        """For a batch of one query a row, from what is on the device: `table` int32 [rows, pages]
        and how many keys each sees, int32 [rows], 0 for padding."""
        rows = len(lengths)
        flat = torch.arange(rows, dtype=torch.int32, device=lengths.device)
        parts = parts_for(rows, self._shape.kv_heads, self._processors)
        return _Prepared(Singles(table, flat, lengths, parts), None)

    def run(
        self,
        query: torch.Tensor,
        layer: int,
        cache: KvCache,
        prepared: _Prepared,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        query = query.contiguous()
        out = torch.empty_like(query)
        keys, values = cache.kv_tensors(layer)
        if prepared.singles is not None:
            attend_singles(query, out, keys, values, prepared.singles, self._shape, reach)
        if prepared.sequences is not None:
            attend_sequences(query, out, keys, values, prepared.sequences, self._shape, reach)
        return out

    def _singles(self, spans: tuple[SequenceSpan, ...]) -> Singles:
        return Singles(
            table=self._table(spans),
            flat=self._int32([span.begin for span in spans]),
            lengths=self._int32([span.context_tokens + 1 for span in spans]),
            parts=parts_for(len(spans), self._shape.kv_heads, self._processors),
        )

    def _sequences(self, spans: tuple[SequenceSpan, ...]) -> Sequences:
        counts = [span.query_tokens for span in spans]
        rows, firsts = tiles_of(counts, self._shape.tile_tokens)
        return Sequences(
            table=self._table(spans),
            begins=self._int32([span.begin for span in spans]),
            counts=self._int32(counts),
            contexts=self._int32([span.context_tokens for span in spans]),
            tile_rows=self._int32(rows),
            tile_firsts=self._int32(firsts),
        )

    def _table(self, spans: tuple[SequenceSpan, ...]) -> torch.Tensor:
        width = max(len(span.blocks) for span in spans)
        return self._int32([[*span.blocks, *[0] * (width - len(span.blocks))] for span in spans])

    def _int32(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return on_device(values, torch.int32, self._device)
