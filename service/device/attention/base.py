"""What an attention back end must say and do.

`prepare` is called once a step and does all index work; `run` is called once a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from service.device.cache.kv_cache import KvCache, KvFormat
from service.device.inputs import StepInputs
from service.device.spec import EVERYTHING, Reach


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts about a back end, shown to users and used to choose one."""

    name: str
    page_tokens: int
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    kv_formats: tuple[KvFormat, ...]
    mixed_batch: bool


class AttentionBackend(Protocol):
    """Causal attention of a mixed batch over paged keys and values."""

    @property
    def capabilities(self) -> Capabilities: ...

    def prepare(self, inputs: StepInputs) -> Any:
        """Whatever `run` needs for this step."""
        ...

    def run(
        self,
        query: torch.Tensor,
        layer: int,
        cache: KvCache,
        prepared: Any,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        """query [tokens, heads, head_dim]; gives [tokens, heads, head_dim]. The step's own
        keys and values are in the layer's pages already."""
        ...


class GraphAttention(AttentionBackend, Protocol):
    """One whose decode step can be captured."""

    def prepare_decodes(self, table: torch.Tensor, lengths: torch.Tensor) -> Any:
        """For a batch of one query a row, from what is on the device: `table` int32 [rows, pages]
        and how many keys each sees, int32 [rows], 0 for padding. Waits for nothing."""
        ...
