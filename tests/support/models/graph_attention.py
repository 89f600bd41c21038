"""Torch's attention for captured decodes, where a CPU stands in for the device: a graph is its
function run again, so what lies in its tensors may be looked at. Our kernels take minutes for what
this takes seconds, since they are interpreted there."""

from __future__ import annotations

from typing import Any

import torch

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.inputs import SequenceSpan, StepInputs


class TorchGraphAttention(TorchPagedAttention):
    """Implements `GraphAttention` under `StandInRuntime`."""

    def prepare_decodes(self, table: torch.Tensor, lengths: torch.Tensor) -> Any:
        page_tokens = self.capabilities.page_tokens
        spans = tuple(
            SequenceSpan(row, 1, length - 1, tuple(blocks[: -(-length // page_tokens)]))
            for row, (length, blocks) in enumerate(
                zip(lengths.tolist(), table.tolist(), strict=True)
            )
            if length
        )
        nothing = torch.empty(0, dtype=torch.int64)
        return self.prepare(StepInputs(nothing, nothing, nothing, nothing, spans, ()))
