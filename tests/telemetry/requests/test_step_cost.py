"""The cost of a step for the step budget: fitted to the warm-up and to served steps."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from service.engine.inbox import SetStepCost
from service.engine.planning.budget import predicted_ns
from telemetry.costs.step_cost import Measured, StepCost, StepCostFold, fit, measured
from telemetry.costs.step_load import StepLoad, attention_pairs
from telemetry.facts.engine_start import WarmUpStep
from tests.support.examples import examples
from tests.support.servers.served import started
from tests.support.worlds.facts import MS, decode, prefill, step


def steps_of(true: SetStepCost, shapes: list[tuple[int, int, int, int]]) -> list[Measured]:
    """Steps of (prompt tokens, their context, decode rows, context tokens), at their true cost."""
    loads = [
        StepLoad(
            tokens, attention_pairs(tokens, before) if tokens else 0.0, rows, rows, context, rows
        )
        for tokens, before, rows, context in shapes
    ]
    return [measured(load, round(predicted_ns(true, load))) for load in loads]


@examples(16, 50)
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

    for true_one, one in zip(steps, steps_of(found, drawn), strict=True):
        assert abs(one.span_ns - true_one.span_ns) <= 0.02 * true_one.span_ns


def test_no_coefficient_is_negative_even_when_noise_says_so() -> None:
    loads = [StepLoad(0, 0.0, n, n, 100 * n, n) for n in range(1, 41)]
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


def cost_after(spans_ms: list[int], prompts: list[bool]) -> StepCost:
    """After steps with a decode each, and a prompt of 64 tokens where it says so."""
    costs: list[StepCost] = []
    fold = StepCostFold(costs.append)
    facts, at_ms = [], 0
    for number, (span_ms, prompt) in enumerate(zip(spans_ms, prompts, strict=True)):
        rows = [decode(1, 100), *([prefill(2, 64)] if prompt else [])]
        facts.append(step(number, at_ms, at_ms + span_ms, rows))
        at_ms += span_ms
    fold.on_facts(facts)
    return costs[-1]


def test_the_spread_is_that_of_single_steps_and_not_of_a_machine_that_became_slower() -> None:
    def after(spans_ms: list[int]) -> float:
        return cost_after(spans_ms, [True] * len(spans_ms)).spread

    assert after([100] * 75) == 1.0
    assert after([100] * 40 + [180] * 260) == pytest.approx(1.0, abs=0.15)
    assert 1.2 <= after([100, 100, 100, 100, 120] * 15) <= 1.4


def test_the_spread_is_that_of_steps_with_prompts() -> None:
    """A pause of 10 ms is much for a step of 20 ms and little for one of 100; and without prompts
    there is nothing to plan."""
    mixed = [number % 2 == 0 for number in range(400)]
    noisy = [100 if one else 20 + 20 * (number % 3 == 0) for number, one in enumerate(mixed)]

    assert cost_after(noisy, mixed).spread < 1.1
    assert cost_after([20, 20, 30] * 100, [False] * 300).spread == 1.2


def test_one_long_step_adds_little_to_the_spread() -> None:
    one_long = [100] * 150 + [900] + [100] * 49

    assert 1.0 < cost_after(one_long, [True] * 200).spread < 1.25


def test_what_is_no_forward_pass_is_told_apart() -> None:
    costs: list[StepCost] = []
    fold = StepCostFold(costs.append)
    for at in range(0, 4000, 100):
        forward = {"forward_ns": (at + 2) * MS, "sample_ns": (at + 95) * MS}
        fold.on_facts([step(at // 100, at, at + 100, [decode(1, 100)], **forward)])

    assert costs[-1].around_ns == 7 * MS
