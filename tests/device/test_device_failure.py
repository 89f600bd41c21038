"""A step that cannot be computed ends its own sequences, on the real executor, at any depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import load_executor
from service.engine.admission import Limits
from service.engine.inbox import Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import SamplingParams
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane

DUMMY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_the_engine_survives_a_failed_step_and_others_get_their_tokens(
    depth: int, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MonotonicClock()
    config = EngineConfig(model=DUMMY, dtype="float32", pipeline_depth=depth)
    executor = load_executor(config, clock, lambda stage: None).executor
    limits = Limits(
        block_tokens=16, blocks_total=executor.blocks_total, max_model_tokens=256, max_seqs=4,
        budget_tokens=16, chunked_prefill=True, queue_limit_requests=9, queue_limit_tokens=999,
    )  # fmt: skip
    forward, calls = executor._decoder.forward, 0

    def sometimes(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            raise RuntimeError("not enough memory")
        return forward(*args)

    monkeypatch.setattr(executor._decoder, "forward", sometimes)
    inbox = Inbox()
    loop = EngineLoop(Scheduler(limits), executor, inbox, Lane(), clock, depth=depth)
    ends: dict[int, EndReason] = {}
    tokens: dict[int, int] = dict.fromkeys(range(6), 0)
    for seq_id in range(6):
        sampling = SamplingParams(temperature=0.0)
        prompt = [20 + seq_id, 21, 22, 23, 24]
        inbox.put(Submit(seq_id=seq_id, prompt=prompt, max_tokens=5, sampling=sampling))
    while len(inbox) or loop.has_work:
        for emission in loop.step():
            tokens[emission.seq_id] += emission.sample is not None
            if emission.end is not None:
                ends[emission.seq_id] = emission.end
    executor.close()

    assert set(ends) == set(range(6))
    assert EndReason.EXECUTOR_ERROR in ends.values()
    whole = [seq_id for seq_id, end in ends.items() if end is EndReason.MAX_TOKENS]
    assert whole
    assert all(tokens[seq_id] == 5 for seq_id in whole)
    assert loop.scheduler.pool.used == 0
