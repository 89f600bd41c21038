"""Warm-up runs before the server is ready, and leaves no state behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.simulation.scenarios import small_limits
from lab.simulation.sim_executor import LinearCost
from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import LoadedEngine, load_executor
from service.engine.admission import Limits
from service.engine.executor import CountedAdapters, StepFailed
from service.engine.kv.blocks import blocks_for
from service.engine.plan import Plan, PrefillChunk, StepOutcome
from service.engine.planning.budget import predicted_ns
from service.engine.warm_up import warm_up
from service.process.engine_main import first_cost
from telemetry.costs.step_load import StepLoad
from telemetry.facts.clock import ManualClock, MonotonicClock
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
    warm_up(warm.executor, engine.limits, MonotonicClock())

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
    warm_up(one.executor, engine.limits, MonotonicClock())

    assert rows
    assert max(rows) <= engine.limits.budget_tokens


def test_a_model_that_cannot_take_a_step_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    one = loaded(1)

    def broken(*args: Any) -> torch.Tensor:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(one.executor._decoder, "forward", broken)
    with pytest.raises(StepFailed, match=r"before any request: .*no kernel image"):
        warm_up(one.executor, Engine(one).limits, MonotonicClock())


# --- what it measures ---------------------------------------------------------------------------


class Compiling(CountedAdapters):
    """A device on which the first step of each shape takes ten times as long; notes all plans."""

    def __init__(self, limits: Limits, cost: LinearCost) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.plans: list[Plan] = []
        self.block_tokens, self.blocks_total = limits.block_tokens, limits.blocks_total
        self._cost = cost
        self._compiled: set[tuple[int, int, int]] = set()

    def launch(self, plan: Plan) -> None:
        self.plans.append(plan)
        prompt = sum(len(chunk.tokens) for chunk in plan.prefills)
        shape = (len(plan.decodes), prompt, sum(row.start for row in plan.rows))
        span_ns = self._cost.step_ns(plan)
        self.clock.advance(span_ns if shape in self._compiled else 10 * span_ns)
        self._compiled.add(shape)

    def collect(self) -> StepOutcome:
        return StepOutcome((), 0, 0)


@given(
    max_seqs=st.integers(1, 64),
    more_budget=st.integers(0, 2048),
    max_model_tokens=st.integers(3, 4096),
    more_blocks=st.integers(0, 64),
    prefill_ns=st.integers(1000, 10**7),
)
def test_every_step_fits_the_engine_and_every_slot_is_free_in_the_end(
    max_seqs: int, more_budget: int, max_model_tokens: int, more_blocks: int, prefill_ns: int
) -> None:
    limits = small_limits(
        block_tokens=16,
        max_seqs=max_seqs,
        budget_tokens=max_seqs + more_budget,
        max_model_tokens=max_model_tokens,
        blocks_total=blocks_for(max_model_tokens, 16) + more_blocks,
    )
    device = Compiling(limits, LinearCost(prefill_token_ns=prefill_ns))
    warm_up(device, limits, device.clock)

    taken: set[int] = set()
    for plan in device.plans:
        taken |= {start.slot for start in plan.started}
        assert 0 < plan.scheduled_tokens <= limits.budget_tokens
        assert {row.slot for row in plan.rows} <= taken
        taken -= set(plan.stopped_slots)
        for row in plan.rows:
            end = row.start + (len(row.tokens) if isinstance(row, PrefillChunk) else 1)
            assert end <= limits.max_model_tokens
            assert len(row.blocks) * limits.block_tokens >= end
            assert max(row.blocks) < limits.blocks_total
    assert not taken


def test_what_a_step_costs_is_measured_without_what_its_first_run_costs() -> None:
    limits = small_limits(max_model_tokens=2048, blocks_total=600, budget_tokens=512, max_seqs=16)
    cost = LinearCost(prefill_token_ns=100_000)
    device = Compiling(limits, cost)
    steps = warm_up(device, limits, device.clock)

    for step in steps:
        decodes_ns = cost.decode_row_ns * step.decode_rows
        if step.decode_rows:
            decodes_ns += cost.context_token_ns * step.context_tokens
        assert step.span_ns == cost.base_ns + decodes_ns + 100_000 * step.prompt_tokens
    assert len({step.prompt_tokens for step in steps}) >= 3
    assert len({step.decode_rows for step in steps}) >= 3


@pytest.mark.parametrize("prefill_ns", [20_000, 200_000, 5_000_000])
def test_the_first_fit_predicts_the_next_steps(prefill_ns: int) -> None:
    """On fast machines and on slow ones, which measure shorter prompts only."""
    limits = small_limits(max_model_tokens=2048, blocks_total=600, budget_tokens=512, max_seqs=16)
    cost = LinearCost(prefill_token_ns=prefill_ns)
    device = Compiling(limits, cost)
    found = first_cost(warm_up(device, limits, device.clock))

    for prompt, rows in ((0, 1), (0, 16), (64, 0), (64, 8), (300, 4)):
        load = StepLoad(prompt, prompt * prompt / 2, rows, rows, 100 * rows, rows)
        true_ns = cost.base_ns + prefill_ns * prompt + 10**6 * rows + 100_000 * rows
        assert predicted_ns(found, load) == pytest.approx(true_ns, rel=0.25)


def test_prompts_grow_only_until_a_step_is_long() -> None:
    limits = small_limits(max_model_tokens=2048, blocks_total=600, budget_tokens=1024)
    slow = Compiling(limits, LinearCost(prefill_token_ns=10**7))
    fast = Compiling(limits, LinearCost(prefill_token_ns=10**3, base_ns=10**6))

    assert longest_prompt(slow, limits) < longest_prompt(fast, limits)


def longest_prompt(device: Compiling, limits: Limits) -> int:
    return max(step.prompt_tokens for step in warm_up(device, limits, device.clock))
