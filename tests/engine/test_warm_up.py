"""Warm-up runs before the server is ready, and leaves no state behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import LoadedEngine, load_executor
from service.engine.executor import StepFailed
from service.engine.warm_up import warm_up
from telemetry.facts.clock import MonotonicClock
from tests.support.models.parity import Engine

DUMMY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
PROMPTS = [[20, 21, 22, 23, 24], list(range(40, 110))]


def loaded(depth: int) -> LoadedEngine:
    config = EngineConfig(model=DUMMY, dtype="float32", pipeline_depth=depth)
    return load_executor(config, MonotonicClock(), lambda stage: None)


@pytest.mark.parametrize("depth", [1, 2])
def test_texts_are_the_same_with_and_without_a_warm_up(depth: int) -> None:
    cold, warm = loaded(depth), loaded(depth)
    limits: dict[str, Any] = {"max_seqs": 2, "budget_tokens": 48}
    engine = Engine(warm, depth, **limits)
    warm_up(warm.executor, engine.limits)

    assert not warm.executor._last_tokens
    assert engine.greedy(PROMPTS, 9) == Engine(cold, depth, **limits).greedy(PROMPTS, 9)
    for one in (cold, warm):
        one.executor.close()


@pytest.mark.parametrize(
    "limits",
    [
        {"budget_tokens": 1, "max_seqs": 1},
        {"max_model_tokens": 3},
        {"blocks_total": 1, "max_model_tokens": 16},
    ],
    ids=lambda limits: next(iter(limits)),
)
def test_the_warm_up_fits_into_the_smallest_engine(
    limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = loaded(1)
    engine, rows = Engine(one, **limits), list[int]()
    forward = one.executor._decoder.forward

    def watched(inputs: Any, cache: Any) -> torch.Tensor:
        rows.append(len(inputs.token_ids))
        return forward(inputs, cache)

    monkeypatch.setattr(one.executor._decoder, "forward", watched)
    warm_up(one.executor, engine.limits)

    assert len(rows) == 3
    assert max(rows) <= engine.limits.budget_tokens


def test_a_model_that_cannot_take_a_step_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    one = loaded(1)

    def broken(*args: Any) -> torch.Tensor:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(one.executor._decoder, "forward", broken)
    with pytest.raises(StepFailed, match=r"before any request: .*no kernel image"):
        warm_up(one.executor, Engine(one).limits)
