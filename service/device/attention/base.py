"""What an attention back end must say and do.

`prepare` is called once a step and does all index work; `run` is called once a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from service.device.inputs import StepInputs


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts about a back end, shown to users and used to choose one."""

    name: str
    page_tokens: int
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    mixed_batch: bool


class AttentionBackend(Protocol):
    """Causal attention of a mixed batch over paged keys and values."""

    @property
    def capabilities(self) -> Capabilities: ...

    def prepare(self, inputs: StepInputs) -> Any:
        """Whatever `run` needs for this step."""
        ...

    def run(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, prepared: Any
    ) -> torch.Tensor:
        """query [tokens, heads, head_dim], pages [pages, page_tokens, kv_heads, head_dim];
        gives [tokens, heads, head_dim]. The step's own keys are in the pages already."""
        ...
