"""The cost of a step for the step budget: fitted to the warm-up and to served steps."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from service.engine.budget import predicted_ns
from service.engine.inbox import SetStepCost
from telemetry.costs.step_cost import Measured, StepCost, StepCostFold, fit, measured
from telemetry.costs.step_load import Load, attention_pairs
from telemetry.facts.engine_start import WarmUpStep
from tests.support.servers.served import started
from tests.support.worlds.facts import MS, decode, step


def steps_of(true: SetStepCost, shapes: list[tuple[int, int, int, int]]) -> list[Measured]:
    """Steps of (prompt tokens, their context, decode rows, context tokens), at their true cost."""
    loads = [
        Load(tokens, attention_pairs(tokens, before) if tokens else 0.0, rows, rows, context, rows)
        for tokens, before, rows, context in shapes
    ]
    return [measured(load, round(predicted_ns(true, load))) for load in loads]


@settings(max_examples=50, deadline=None)
@given(
    base=st.integers(10**6, 10**8),
    prefill_ns=st.integers(0, 10**6),
    pair_ns=st.integers(0, 1000),
    decode_ns=st.integers(0, 10**7),
    context_ns=st.integers(0, 10**4),
    data=st.data(),
)
def test_a_cost_is_found_again_from_the_steps_it_made(
    base: int, prefill_ns: int, pair_ns: int, decode_ns: int, context_ns: int, data: st.DataObject
) -> None:
    true = SetStepCost(
        base_ns=base,
        prefill_token_ns=prefill_ns,
        decode_row_ns=decode_ns,
        context_token_ns=context_ns,
        pair_ns=pair_ns,
    )
    shapes = st.tuples(
        st.integers(0, 512), st.integers(0, 4000), st.integers(0, 64), st.integers(0, 20_000)
    )
    drawn = data.draw(st.lists(shapes, min_size=40, max_size=80, unique=True))
    steps = steps_of(true, drawn)
    found = SetStepCost(**msgspec.structs.asdict(fit(steps)))

    for (_, span_ns), (_, found_ns) in zip(steps, steps_of(found, drawn), strict=True):
        assert abs(found_ns - span_ns) <= 0.02 * span_ns


def test_no_coefficient_is_negative_even_when_noise_says_so() -> None:
    loads = [Load(0, 0.0, n, n, 100 * n, n) for n in range(1, 41)]
    found = fit([measured(load, 10**7 - 10**4 * load.decode_rows) for load in loads])

    assert min(found.base_ns, found.prefill_token_ns, found.decode_row_ns) >= 0
    assert found.context_token_ns >= 0


def test_prompts_have_their_price_from_the_warm_up_until_one_is_served() -> None:
    """A server that has only decoded yet still knows what a prompt costs."""
    costs: list[StepCost] = []
    fold = StepCostFold(costs.append)
    warm = (
        WarmUpStep(16, 0, 0, 20 * MS), WarmUpStep(64, 0, 0, 68 * MS), WarmUpStep(0, 1, 1, 5 * MS)
    )  # fmt: skip
    fold.on_facts([replace(started(0), warm_up=warm)])
    fold.on_facts([step(i, 10 * i, 10 * i + 5, [decode(1, 100)]) for i in range(300)])

    assert costs[-1].prefill_token_ns * 64 + costs[-1].mixed_ns >= 40 * MS
    assert abs(costs[-1].base_ns + costs[-1].decode_row_ns - 5 * MS) < MS


def test_the_fold_refits_every_few_steps_and_starts_anew_with_an_engine() -> None:
    costs: list[StepCost] = []
    fold = StepCostFold(costs.append)
    few = [step(i, 10 * i, 10 * i + 5, [decode(1, 100)]) for i in range(29)]
    fold.on_facts(few)
    assert not costs
    fold.on_facts([step(29, 290, 295, [decode(1, 100)])])

    (cost,) = costs
    one_ns = cost.base_ns + cost.decode_row_ns + 100 * cost.context_token_ns
    assert abs(one_ns - 5 * MS) < 0.02 * MS

    fold.on_facts([started(0), *few])
    assert len(costs) == 1


def test_the_spread_is_that_of_single_steps_and_not_of_a_machine_that_became_slower() -> None:
    def after(spans_ms: list[int]) -> float:
        costs: list[StepCost] = []
        fold = StepCostFold(costs.append)
        facts, at_ms = [], 0
        for number, span_ms in enumerate(spans_ms):
            facts.append(step(number, at_ms, at_ms + span_ms, [decode(1, 100)]))
            at_ms += span_ms
        fold.on_facts(facts)
        return costs[-1].spread

    assert after([100] * 75) == 1.0
    assert after([100] * 40 + [180] * 260) == 1.0
    assert after([100, 100, 100, 100, 120] * 15) == pytest.approx(1.2)
