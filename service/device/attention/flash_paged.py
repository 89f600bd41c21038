"""Attention by a FlashAttention package, whichever there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from service.device.attention.base import Capabilities
from service.device.attention.flash_providers import Provider, Rows
from service.device.cache.kv_cache import KvCache, KvFormat
from service.device.inputs import SequenceSpan, StepInputs
from service.device.pinned import on_device
from service.device.spec import EVERYTHING, Reach


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the provider: `flat` int64 [tokens] are its queries in the flat batch, None for
    all of them in their order."""

    rows: Rows
    flat: torch.Tensor | None
    one_query: bool


class FlashPagedAttention:
    """Implements `GraphAttention` on CUDA."""

    def __init__(self, provider: Provider, device: torch.device) -> None:
        self._provider = provider
        self._device = device

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name=self._provider.name,
            page_tokens=self._provider.page_tokens,
            devices=("cuda",),
            dtypes=(torch.float16, torch.bfloat16),
            kv_formats=(KvFormat.PLAIN,),
            mixed_batch=self._provider.mixed_batch,
        )

    def prepare(self, inputs: StepInputs) -> tuple[_Call, ...]:
        spans = sorted((*inputs.decodes, *inputs.prefills), key=lambda span: span.begin)
        if not inputs.prefills:
            return (_Call(self._rows(spans), None, True),)
        if self._provider.mixed_batch or not inputs.decodes:
            return (_Call(self._rows(spans), None, False),)
        return (
            _Call(self._rows(inputs.decodes), self._flat(inputs.decodes), True),
            _Call(self._rows(inputs.prefills), self._flat(inputs.prefills), False),
        )

    def prepare_decodes(self, table: torch.Tensor, lengths: torch.Tensor) -> tuple[_Call, ...]:
        """For a batch of one query a row, from what is on the device: `table` int32 [rows, pages]
        and how many keys each sees, int32 [rows], 0 for padding."""
        begins = torch.arange(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        most_keys = table.shape[1] * self._provider.page_tokens
        return (_Call(Rows(table, begins, lengths, 1, most_keys), None, True),)

    def run(
        self,
        query: torch.Tensor,
        layer: int,
        cache: KvCache,
        prepared: tuple[_Call, ...],
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        keys, values = (side.data for side in cache.kv_tensors(layer))
        query = query.contiguous()
        if prepared[0].flat is None:
            return self._call(query, keys, values, prepared[0], reach)
        out = torch.empty_like(query)
        for call in prepared:
            out[call.flat] = self._call(query[call.flat], keys, values, call, reach)
        return out

    def _call(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        call: _Call,
        reach: Reach,
    ) -> torch.Tensor:
        provider = self._provider
        run = provider.one_query if call.one_query else provider.any_queries
        return run(query, keys, values, call.rows, reach)

    def _rows(self, spans: Sequence[SequenceSpan]) -> Rows:
        width = max(len(span.blocks) for span in spans)
        counts = [span.query_tokens for span in spans]
        lengths = [span.context_tokens + span.query_tokens for span in spans]
        return Rows(
            table=self._int32(
                [[*span.blocks, *[0] * (width - len(span.blocks))] for span in spans]
            ),
            begins=self._int32([0, *accumulate(counts)]),
            lengths=self._int32(lengths),
            most_queries=max(counts),
            most_keys=max(lengths),
        )

    def _flat(self, spans: Sequence[SequenceSpan]) -> torch.Tensor:
        places = [
            place for one in spans for place in range(one.begin, one.begin + one.query_tokens)
        ]
        return on_device(places, torch.int64, self._device)

    def _int32(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return on_device(values, torch.int32, self._device)
