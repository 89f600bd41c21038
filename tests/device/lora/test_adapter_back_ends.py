"""Which back ends compute adapters, and what the others say at the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device import backends
from service.device.loader import LoadedEngine, load_executor
from service.device.spec import DUMMY_SHAPES
from telemetry.facts.clock import MonotonicClock
from tests.support.models.adapters import adapter_tensors, texts, write_adapter

TINY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="tiny")
ROOM_BYTES = 1 << 20


def load(config: EngineConfig) -> LoadedEngine:
    return load_executor(config, MonotonicClock(), lambda stage: None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            EngineConfig(model=TINY, executor="openvino", lora_bytes=ROOM_BYTES),
            "--lora-memory: OpenVINO's graph computes no LoRA adapters; use --executor native",
        ),
        (
            EngineConfig(model=TINY, executor="torch", tensor_parallel=2, lora_bytes=ROOM_BYTES),
            "--lora-memory: tensor-parallel ranks compute no LoRA adapters; use --tensor",
        ),
    ],
)
def test_a_back_end_without_adapters_refuses_their_memory_by_name(
    config: EngineConfig, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(config)


def test_auto_takes_a_back_end_that_computes_adapters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Though another one would be faster; what is read for it has its number format."""
    monkeypatch.setattr(backends, "cpu_multiplies_bf16", lambda: True)
    loaded = load(EngineConfig(model=TINY, lora_bytes=ROOM_BYTES))
    assert loaded.backend.name.startswith("native-cpu (not openvino: --lora-memory:")
    assert loaded.adapters_fault is None

    tensors = adapter_tensors(DUMMY_SHAPES["tiny"], 8, seed=1)
    adapter = loaded.read_adapter(write_adapter(tmp_path, tensors))
    assert adapter.dtype is torch.bfloat16
    assert loaded.executor.place_adapter(1, adapter) >= adapter.bytes
    prompts = [[5, 6, 7], [5, 6, 7]]
    ours, base = texts(loaded.executor, prompts, [1, 0], 4)
    assert len(ours) == len(base) == 4
    assert loaded.executor.drop_adapter(1) == 0
