"""How many prompt tokens a step gets: what fits into the time that its latency target leaves."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.simulation.sim_executor import LinearCost
from service.engine.inbox import SetStepCost
from service.engine.plan import DecodeRow, Plan, StepOutcome
from service.engine.planning.budget import (
    FINISH_SHARE,
    LATE_SHARE,
    LEAST_SHARE,
    TILE_TOKENS,
    PromptTime,
    StepCostModel,
    predicted_ns,
)
from service.engine.planning.targets import Bounds
from telemetry.costs.step_load import StepLoad, attention_pairs
from tests.support.worlds.engine_world import World

MS = 1_000_000
COST = LinearCost(prefill_token_ns=MS)
"""A step of 20 ms, 1 ms for each prompt token and decode row."""


def world(knows_cost: bool = True, cost: LinearCost = COST, **limits: object) -> World:
    """One sequence that decodes, and has a target for it."""
    defaults: dict[str, object] = {
        "auto_budget": True, "budget_tokens": 64, "blocks_total": 400, "max_model_tokens": 256,
        "prefix_cache": False,
    }  # fmt: skip
    found = World(cost=cost, **{**defaults, **limits})  # type: ignore[arg-type]
    if knows_cost:
        found.inbox.put(COST.as_fitted())
    return found


def decoding(found: World, itl_ms: int | None, count: int = 1) -> None:
    target_ns = None if itl_ms is None else itl_ms * MS
    for _ in range(count):
        found.submit(4, max_tokens=200, itl_target_ns=target_ns)
    found.step()
    found.step()


def chunks(found: World, seq_id: int) -> list[int]:
    return [
        row.tokens for step in found.steps for row in step.rows
        if row.seq_id == seq_id and row.is_prefill
    ]  # fmt: skip


def mixed_ns(found: World) -> list[int]:
    """The lengths of steps with decodes and prompts."""
    return [
        step.sample_ns - step.forward_ns
        for step in found.steps
        if len({row.is_prefill for row in step.rows}) == 2
    ]


# --- what fits ----------------------------------------------------------------------------------


COSTS = st.builds(
    SetStepCost,
    base_ns=st.integers(0, 100 * MS),
    prefill_token_ns=st.integers(1, 10 * MS),
    decode_row_ns=st.integers(0, 5 * MS),
    context_token_ns=st.integers(0, 10_000),
    pair_ns=st.floats(0, 10_000),
    mixed_ns=st.integers(0, 10 * MS),
    spread=st.floats(1.0, 1.3),
)
LOADS = st.builds(
    lambda rows, context: StepLoad(0, 0.0, rows, rows, context, rows),
    st.integers(0, 64),
    st.integers(0, 50_000),
)


def fill(time: PromptTime, remaining: list[int], cap: int) -> list[tuple[int, int]]:
    """Chunks of prompts, as a plan takes them: (tokens, context)."""
    taken: list[tuple[int, int]] = []
    for tokens in remaining:
        count = time.tokens(tokens, tokens // 2, min(tokens, cap))
        if count:
            time.take(count, tokens // 2)
            taken.append((count, tokens // 2))
            cap -= count
    return taken


@settings(max_examples=300, deadline=None)
@given(
    cost=COSTS, decodes=LOADS, target_ns=st.integers(1, 10**9), overdue=st.booleans(),
    left=st.lists(st.integers(1, 4000), min_size=1, max_size=4), cap=st.integers(1, 4096),
)  # fmt: skip
def test_a_step_takes_its_target_or_a_share_beyond_its_decodes_and_a_tile_more(
    cost: SetStepCost, decodes: StepLoad, target_ns: int, overdue: bool, left: list[int], cap: int
) -> None:
    costs = StepCostModel()
    costs.set(cost)
    time = costs.prompt_time(decodes, Bounds(target_ns), overdue)
    assert time is not None
    taken = fill(time, left, cap)

    tokens = sum(count for count, _ in taken)
    pairs = sum(attention_pairs(count, context) for count, context in taken)
    span_ns = predicted_ns(cost, decodes._replace(prompt_tokens=tokens, pairs=pairs))
    alone_ns = predicted_ns(cost, decodes)
    tile_ns = cost.prefill_token_ns * TILE_TOKENS
    tile_ns += cost.pair_ns * attention_pairs(TILE_TOKENS, taken[0][1]) + cost.mixed_ns
    share = LATE_SHARE if overdue or alone_ns > target_ns / cost.spread else LEAST_SHARE

    planned_ns = target_ns / cost.spread
    most_ns = max(planned_ns, (1 + share) * alone_ns) + FINISH_SHARE * (target_ns - planned_ns)
    assert span_ns <= 1.001 * most_ns + tile_ns + 1
    assert taken[0][0] >= min(TILE_TOKENS, left[0], cap)
    for (count, _), rest in zip(taken, left, strict=False):
        assert count % TILE_TOKENS == 0 or count in (rest, cap) or len(taken) > 1
    assert tokens <= cap


@settings(max_examples=200, deadline=None)
@given(cost=COSTS, decodes=LOADS, target_ns=st.integers(1, 10**9), context=st.integers(0, 8000))
def test_a_step_has_no_room_for_another_tile_while_a_prompt_waits(
    cost: SetStepCost, decodes: StepLoad, target_ns: int, context: int
) -> None:
    costs = StepCostModel()
    costs.set(cost)
    time = costs.prompt_time(decodes, Bounds(target_ns), False)
    assert time is not None
    tokens = time.tokens(10**9, context, 10**9)
    longer = tokens + TILE_TOKENS
    load = decodes._replace(prompt_tokens=longer, pairs=attention_pairs(longer, context))

    assert 1.001 * predicted_ns(cost, load) + 1 >= target_ns / cost.spread


def test_where_prompts_at_all_make_a_step_late_it_computes_a_share_of_them() -> None:
    """2 ms of decodes, and 4 ms more for a step with prompts: three targets would be missed for
    each tile of 4 tokens. A step that keeps the target pays them from the share."""
    costs = StepCostModel()
    costs.set(SetStepCost(base_ns=2 * MS, prefill_token_ns=1_000, decode_row_ns=0, mixed_ns=4 * MS))

    def tokens(target_ms: int) -> int:
        time = costs.prompt_time(StepLoad(0, 0.0, 8, 8, 0, 8), Bounds(target_ms * MS), False)
        assert time is not None
        return time.tokens(4000, 0, 4000)

    assert tokens(3) == 664  # a third of the decodes' time
    assert tokens(7) == 1000


def test_a_prompt_that_a_part_of_the_margin_finishes_waits_for_no_other_step() -> None:
    """100 ms less a margin of 20 are 80; 24 decodes leave 56 tokens, and 6 more for the end."""
    costs = StepCostModel()
    costs.set(SetStepCost(base_ns=0, prefill_token_ns=MS, decode_row_ns=MS, spread=1.25))
    decodes = StepLoad(0, 0.0, 24, 24, 0, 24)

    def tokens(remaining: int, others: tuple[int, ...] = ()) -> int:
        time = costs.prompt_time(decodes, Bounds(100 * MS), False)
        assert time is not None
        for one in others:
            time.take(time.tokens(one, 0, one), 0)
        return time.tokens(remaining, 0, remaining)

    assert tokens(62) == 62
    assert tokens(63) == 56
    assert tokens(6, (56,)) == 6
    assert tokens(6, (60,)) == 0


def test_a_prompt_has_the_bound_of_its_class() -> None:
    costs = StepCostModel()
    costs.set(SetStepCost(base_ns=0, prefill_token_ns=MS, decode_row_ns=MS, spread=1.25))
    voice, batch = 150 * MS, 2000 * MS
    bounds = Bounds(100 * MS, {voice: 75 * MS, batch: 60 * MS})
    time = costs.prompt_time(StepLoad(0, 0.0, 20, 20, 0, 20), bounds, False)
    assert time is not None

    assert bounds.tightest_ns == 60 * MS
    assert time.tokens(500, 0, 500, bounds.prompts_ns[batch]) == 40
    assert time.tokens(500, 0, 500, bounds.prompts_ns[voice]) == 52
    assert time.tokens(500, 0, 500) == 60


@settings(max_examples=200, deadline=None)
@given(
    cost=COSTS, decodes=LOADS, target_ns=st.integers(1, 10**9), remaining=st.integers(1, 4000),
    tile_rows=st.sampled_from((8, 32)),
)  # fmt: skip
def test_a_step_ends_with_the_nearest_whole_tile(
    cost: SetStepCost, decodes: StepLoad, target_ns: int, remaining: int, tile_rows: int
) -> None:
    costs, rows = StepCostModel(), decodes.decode_rows
    costs.set(cost)
    time, without = (
        costs.prompt_time(decodes, Bounds(target_ns), False, tile) for tile in (tile_rows, 0)
    )
    assert time is not None
    assert without is not None
    count = time.tokens(remaining, 0, remaining, before=rows)
    fits = without.tokens(remaining, 0, remaining)

    assert 0 < count <= fits + tile_rows // 2 + TILE_TOKENS - 1
    is_less = count == TILE_TOKENS or rows % tile_rows + fits < tile_rows
    assert (rows + count) % tile_rows == 0 or count == remaining or is_less


# --- in an engine -------------------------------------------------------------------------------


def test_chunks_beside_decodes_are_what_their_target_leaves() -> None:
    """60 ms, less 21 ms for one decode, are 38 prompt tokens and a bit, in whole tiles."""
    found = world()
    decoding(found, 60)
    prompt = found.submit(100)
    found.run()

    assert chunks(found, prompt)[:2] == [38 // TILE_TOKENS * TILE_TOKENS] * 2
    assert max(mixed_ns(found)) <= 60 * MS


def test_decodes_and_prompts_fill_whole_tiles_together() -> None:
    found = world(tile_rows=16)
    decoding(found, 60)
    prompt = found.submit(100)
    found.run()

    assert chunks(found, prompt)[:2] == [32 - 1] * 2


def test_the_step_says_its_target_and_the_tokens_that_its_time_allowed() -> None:
    found = world()
    decoding(found, 60)
    found.submit(100)
    found.step()
    step = found.steps[-1]

    assert step.target_ns == 60 * MS
    assert sum(row.tokens for row in step.rows) == step.budget_tokens < 64


def test_without_a_cost_the_cap_is_the_budget() -> None:
    found = world(knows_cost=False)
    decoding(found, 60)
    prompt = found.submit(200)
    found.step()

    assert chunks(found, prompt) == [63]
    assert found.steps[-1].target_ns is None


@pytest.mark.parametrize("limits", [{"auto_budget": False}, {"chunked_prefill": False}])
def test_a_fixed_budget_and_whole_prompts_are_as_without_targets(limits: dict[str, bool]) -> None:
    def steps(itl_ms: int | None) -> list[tuple[int, int | None, int]]:
        found = world(**limits)
        decoding(found, itl_ms)
        found.submit(150)
        found.run()
        return [(len(s.rows), s.target_ns, s.budget_tokens) for s in found.steps]

    assert steps(30) == steps(None)
    assert {target for _, target, _ in steps(30)} == {None}


@pytest.mark.parametrize(
    ("itl_ms", "by_ns", "share"),
    [
        (210, 10**12, LEAST_SHARE),
        (210, 1, LATE_SHARE),
        (5, 10**12, LATE_SHARE),
    ],
    ids=["little room", "overdue prompt", "decodes miss their target"],
)
def test_prompts_get_a_share_of_a_step_that_has_no_room(
    itl_ms: int, by_ns: int, share: float
) -> None:
    slow = LinearCost(base_ns=200 * MS, prefill_token_ns=MS)
    found = World(
        cost=slow, auto_budget=True, budget_tokens=512, blocks_total=400, max_model_tokens=1024,
        prefix_cache=False,
    )  # fmt: skip
    found.inbox.put(slow.as_fitted())
    decoding(found, itl_ms)
    prompt = found.submit(900, first_token_by_ns=by_ns, ttft_target_ns=max(1, by_ns // 10))
    found.step()
    (tokens,) = chunks(found, prompt)
    alone_ns = 201 * MS

    assert tokens <= share * alone_ns / MS < tokens + TILE_TOKENS + 1


def test_prompts_alone_have_the_whole_cap() -> None:
    found = world()
    prompt = found.submit(200, itl_target_ns=MS, ttft_target_ns=MS, first_token_by_ns=MS)
    found.run()

    assert chunks(found, prompt)[0] == 64


# --- the speed of the machine -------------------------------------------------------------------


def learn(cost: StepCostModel, span_ns: int, count: int) -> list[float]:
    """The drift after each of `count` steps of one decode that take `span_ns`."""
    row = DecodeRow(seq_id=0, slot=0, start=0, blocks=(), output_index=0)
    plan = Plan(
        step_id=0, decodes=(row,), prefills=(), started=(), stopped_slots=(), preempted=(),
        skips=(), budget_tokens=64,
    )  # fmt: skip
    found: list[float] = []
    for _ in range(count):
        cost.learn(plan, StepOutcome((), 0, span_ns))
        found.append(cost.drift)
    return found


def test_the_drift_follows_a_machine_that_became_twice_as_slow_and_recovers() -> None:
    cost = StepCostModel()
    cost.set(SetStepCost(base_ns=20 * MS, prefill_token_ns=MS, decode_row_ns=0))

    assert learn(cost, 20 * MS, 100)[-1] == 1.0
    slow = learn(cost, 40 * MS, 12)
    assert max(slow) == pytest.approx(2.0)
    assert all(one <= other for one, other in pairwise(slow))
    assert learn(cost, 20 * MS, 100)[-1] == pytest.approx(1.0)


def test_a_machine_that_is_twice_as_slow_halves_the_prompt_tokens_of_a_step() -> None:
    cost = StepCostModel()
    cost.set(SetStepCost(base_ns=0, prefill_token_ns=MS, decode_row_ns=MS))
    learn(cost, MS, 100)
    load = StepLoad(0, 0.0, 1, 1, 0, 1)
    usual = cost.prompt_time(load, Bounds(1000 * MS), False)
    learn(cost, 2 * MS, 12)
    slow = cost.prompt_time(load, Bounds(1000 * MS), False)

    assert usual is not None
    assert slow is not None
    tokens = [time.tokens(10**6, 0, 10**6) for time in (usual, slow)]
    assert tokens[1] == pytest.approx(tokens[0] / 2, rel=0.02)


def test_a_few_steps_and_a_failed_one_correct_nothing() -> None:
    cost = StepCostModel()
    cost.set(SetStepCost(base_ns=20 * MS, prefill_token_ns=MS, decode_row_ns=0))

    assert set(learn(cost, 90 * MS, 4)) == {1.0}
    assert set(learn(cost, 0, 100)) == {1.0}


def test_a_machine_that_stays_slow_stays_slow_until_the_fit_has_followed() -> None:
    """A fit has seen hundreds of steps; until it knows the new speed the correction holds."""
    cost = StepCostModel()
    cost.set(SetStepCost(base_ns=20 * MS, prefill_token_ns=MS, decode_row_ns=0))
    learn(cost, 20 * MS, 100)
    assert learn(cost, 40 * MS, 300)[-1] == pytest.approx(2.0)

    cost.set(SetStepCost(base_ns=40 * MS, prefill_token_ns=MS, decode_row_ns=0))
    assert cost.drift == pytest.approx(1.0)


def test_what_a_step_takes_beside_its_forward_pass_is_no_drift() -> None:
    cost = StepCostModel()
    cost.set(SetStepCost(base_ns=20 * MS, prefill_token_ns=MS, decode_row_ns=0, around_ns=2 * MS))

    assert learn(cost, 18 * MS, 20)[-1] == pytest.approx(1.0)


def test_no_two_long_steps_make_the_machine_slow() -> None:
    cost = StepCostModel()
    cost.set(SetStepCost(base_ns=20 * MS, prefill_token_ns=MS, decode_row_ns=0))
    learn(cost, 20 * MS, 100)

    assert learn(cost, 2000 * MS, 2)[-1] == 1.0


def test_the_pace_of_prompts_is_that_of_the_machine_again_once_nothing_bounds_the_steps() -> None:
    """Beside decodes near their target a prompt takes several times as long as alone."""
    found = world()
    decoding(found, 22)
    found.submit(40)
    for _ in range(2):
        found.step()
    cost = found.scheduler._planner.cost
    assert cost.prompt_token_ns > 2 * MS

    found.cancel(0)
    found.step()
    found.step()
    assert cost.prompt_token_ns == MS
