"""Reads an adapter in PEFT's format: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch

from service.device.lora.weights import AdapterWeights
from service.device.spec import ModelSpec

MOST_RANK = 256
MOST_BYTES = 2 << 30


def read_adapter(
    path: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    most_rank: int = MOST_RANK,
    most_bytes: int = MOST_BYTES,
) -> AdapterWeights:
    """The adapter in folder `path` for a base model of `spec`, its numbers rounded to `dtype`
    (bfloat16 or float32). May be called by any thread and touches no device. Raises ConfigError
    with one line that says what is refused and what to do."""
    raise NotImplementedError
