"""The whole engine with models that have windows: chunks and reused prefixes, beyond them."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import load_executor
from telemetry.facts.clock import MonotonicClock
from tests.models.test_parity_families import some_ids
from tests.support.models.parity import Engine, Judge
from tests.support.models.tiny_families import random_reference

NEARLY = 1e-3  # logits between which rounding may choose


@pytest.mark.parametrize("executor", ["torch", "native"])
@pytest.mark.parametrize("name", ["gemma3", "mistral-window", "qwen2-window"])
def test_texts_beyond_a_window_are_the_references_whatever_is_reused(
    name: str, executor: str, tmp_path: Path
) -> None:
    """Prompts of 70 tokens, 48 of them shared, in chunks of at most 40."""
    judge = Judge(random_reference(name, tmp_path))
    model = ModelRef(kind=ModelKind.HF_FOLDER, path=str(tmp_path), name=name)
    config = EngineConfig(model=model, executor=executor, dtype="float32", max_model_tokens=256)
    loaded = load_executor(config, MonotonicClock(), lambda stage: None)
    shared = some_ids(48, seed=1)
    prompts = [shared + some_ids(22, seed) for seed in (2, 3, 4)]
    engine = Engine(loaded, budget_tokens=40)

    first = engine.greedy(prompts[:1], 24)
    rest = engine.greedy(prompts, 24)

    assert engine.hit_tokens >= 3 * 48
    for prompt, text in zip([prompts[0], *prompts], [*first, *rest], strict=True):
        assert len(text) == 24
        assert max(judge.behind(prompt, text)) < NEARLY
