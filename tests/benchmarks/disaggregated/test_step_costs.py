"""Steps that costs are fitted to, of a tiny model: what they compute is the same on any machine."""

from __future__ import annotations

import pytest

from benchmarks.disaggregated.step_costs import (
    FITTED,
    HELD_OUT,
    KINDS,
    Step,
    arrivals_of,
    cost_of,
    errors_of,
    load,
    measure,
    model_of,
    round_of,
)
from lab.fleet.disaggregated.pair import Device
from service.device.cache.block_bytes import CacheBlocks
from service.engine.inbox import SetStepCost
from service.engine.planning.budget import predicted_ns
from telemetry.costs.step_load import StepLoad, attention_pairs

VOCABULARY = 500
COST = SetStepCost(
    base_ns=30_000_000, prefill_token_ns=1_500_000, decode_row_ns=3_000_000,
    context_token_ns=900, pair_ns=3_000.0, mixed_ns=5_000_000,
)  # fmt: skip
LOADS = [
    *(StepLoad(decode_rows=n, context_tokens=n * 37 * n) for n in range(1, 17)),
    *(StepLoad(64 * n, attention_pairs(64 * n, 70 * n)) for n in range(1, 9)),
    *(StepLoad(64 * n, attention_pairs(64 * n, 9), 0, n, 300 * n * n) for n in range(1, 25)),
]


def exact(speed: float = 1.0) -> list[Step]:
    """Steps that take what COST says."""
    return [Step(one, round(speed * predicted_ns(COST, one)), 0) for one in LOADS]


@pytest.fixture(scope="module")
def device() -> Device:
    engine = load(model_of("dummy:tiny"), {"kv_bytes": 4 << 20})
    return Device(engine.executor, CacheBlocks(engine.cache))


def test_a_round_has_steps_of_each_kind_and_computes_the_same_again(device: Device) -> None:
    arrivals = arrivals_of(128, FITTED, VOCABULARY)
    once, again = (round_of(device, 128, arrivals) for _ in range(2))
    rows = {step.load.decode_rows for step in once if step.kind == KINDS[0]}

    assert {step.kind for step in once} == set(KINDS)
    assert [step.load for step in once] == [step.load for step in again]
    assert len(rows) > 3
    assert max(step.load.prompt_tokens for step in once) == 128
    prompts = sum(len(one.prompt) for one in arrivals)
    assert sum(step.load.prompt_tokens for step in once) == prompts
    outputs = sum(one.outputs - 1 for one in arrivals)
    assert sum(step.load.decode_rows for step in once) == outputs


def test_what_is_held_out_are_other_requests(device: Device) -> None:
    fitted, held_out = (arrivals_of(64, seed, VOCABULARY) for seed in (FITTED, HELD_OUT))
    found = measure(device, (64,), VOCABULARY)

    assert not {one.prompt for one in fitted} & {one.prompt for one in held_out}
    assert set(found["held_out"]) == {*KINDS, "all"}
    assert found["held_out"]["all"]["steps"] == sum(
        found["held_out"][kind]["steps"] for kind in KINDS
    )
    assert SetStepCost(**found["step_cost"])


def test_steps_that_follow_the_terms_are_predicted_without_error() -> None:
    found = errors_of(cost_of(exact()), exact())

    assert {kind: one["median_error"] for kind, one in found.items()} == dict.fromkeys(found, 0.0)
    assert {kind: one["bias"] for kind, one in found.items()} == dict.fromkeys(found, 0.0)
    assert cost_of(exact()).prefill_token_ns == pytest.approx(COST.prefill_token_ns, rel=1e-3)


def test_a_machine_that_was_a_quarter_slower_is_a_bias_of_minus_a_fifth() -> None:
    found = errors_of(cost_of(exact()), exact(1.25))

    assert found["all"]["bias"] == pytest.approx(-0.2, abs=0.002)
    assert found["both"]["median_error"] == pytest.approx(0.2, abs=0.002)
