"""Which latency target bounds a step: of those who decode in it, and of those who may come."""

from __future__ import annotations

import pytest

from lab.simulation.sim_executor import LinearCost
from service.engine.inbox import Pause
from service.engine.planning.targets import (
    EXPECTED_BESIDE_LOOSER_NS,
    EXPECTED_NS,
    SHARE,
    SHARE_BESIDE_LOOSER,
)
from tests.support.worlds.engine_world import World

MS = 1_000_000
COST = LinearCost(prefill_token_ns=MS)
VOICE_NS, CHAT_NS, BATCH_NS = 150 * MS, 1000 * MS, 60_000 * MS


def world(**limits: object) -> World:
    defaults: dict[str, object] = {
        "auto_budget": True, "budget_tokens": 256, "blocks_total": 400, "max_model_tokens": 1024,
        "prefix_cache": False,
    }  # fmt: skip
    found = World(cost=COST, **{**defaults, **limits})  # type: ignore[arg-type]
    found.inbox.put(COST.as_fitted())
    return found


def submit(found: World, ttft_ns: int, prompt: int = 4, **fields: object) -> int:
    by_ns = found.clock.now_ns() + ttft_ns
    return found.submit(prompt, first_token_by_ns=by_ns, ttft_target_ns=ttft_ns, **fields)  # type: ignore[arg-type]


def last_target(found: World) -> int | None:
    return found.steps[-1].target_ns


# --- of those who decode ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("itl_ms", "override_ms", "bound_ms"),
    [
        ([90, 60, 70], None, 60),
        ([90, None], None, 90),
        ([None, None], None, None),
        ([90, 60], 75, 75),
        ([None], 75, 75),
    ],
)
def test_the_tightest_target_of_the_rows_bounds_it_unless_one_is_set_for_all(
    itl_ms: list[int | None], override_ms: int | None, bound_ms: int | None
) -> None:
    found = world(itl_target_ns=None if override_ms is None else override_ms * MS)
    for one in itl_ms:
        found.submit(4, max_tokens=50, itl_target_ns=None if one is None else one * MS)
    found.step()
    found.step()
    found.submit(200)
    found.step()

    assert last_target(found) == (None if bound_ms is None else bound_ms * MS)


def test_a_target_for_all_bounds_no_step_without_decodes() -> None:
    found = world(itl_target_ns=75 * MS)
    found.submit(200)
    found.step()

    assert last_target(found) is None


def test_a_target_for_all_bounds_steps_with_a_fixed_budget_too() -> None:
    found = world(itl_target_ns=75 * MS, auto_budget=False)
    found.submit(4, max_tokens=50, itl_target_ns=10 * MS)
    found.step()
    found.submit(200)
    found.step()

    assert last_target(found) == 75 * MS


def test_a_sequence_whose_reader_is_slow_bounds_nothing() -> None:
    found = world()
    slow = found.submit(4, max_tokens=50, itl_target_ns=30 * MS)
    found.submit(4, max_tokens=50, itl_target_ns=90 * MS)
    found.step()
    found.step()
    assert last_target(found) == 30 * MS

    found.inbox.put(Pause(slow))
    found.step()
    assert last_target(found) == 90 * MS


# --- of those who may come ----------------------------------------------------------------------


def came_beside_others(found: World, ttft_ns: int) -> None:
    """A request of that class came while another was served; both have ended."""
    found.submit(4, max_tokens=4)
    found.step()
    submit(found, ttft_ns, max_tokens=1)
    found.run()


def test_a_class_that_came_lately_bounds_steps_that_compute_prompts_of_a_looser_one() -> None:
    """Voice that comes in the middle of a batch job's prompt waits for the end of its step."""
    found = world()
    came_beside_others(found, VOICE_NS)
    batch = submit(found, BATCH_NS, prompt=600)
    found.step()
    step = found.steps[-1]

    assert step.target_ns == int(SHARE_BESIDE_LOOSER * VOICE_NS)
    assert step.sample_ns - step.forward_ns <= step.target_ns
    assert [row.seq_id for row in step.rows] == [batch]


def test_prompts_of_the_same_class_leave_it_a_larger_share() -> None:
    found = world()
    came_beside_others(found, CHAT_NS)
    submit(found, CHAT_NS, prompt=600)
    found.step()

    assert last_target(found) == int(SHARE * CHAT_NS)


def test_who_came_when_nobody_was_served_waits_for_no_step() -> None:
    found = world()
    for _ in range(3):
        submit(found, CHAT_NS, prompt=200, max_tokens=1)
        found.run()
    submit(found, BATCH_NS, prompt=200)
    found.step()

    assert last_target(found) is None


@pytest.mark.parametrize(
    ("ttft_ns", "expected_ns", "share"),
    [(BATCH_NS, EXPECTED_BESIDE_LOOSER_NS, SHARE_BESIDE_LOOSER), (VOICE_NS, EXPECTED_NS, SHARE)],
    ids=["beside a looser class", "among its own"],
)
def test_a_class_that_has_not_come_for_long_is_not_waited_for(
    ttft_ns: int, expected_ns: int, share: float
) -> None:
    """Among its own class sooner: a lone long prompt is not cut for those who have gone."""

    def target(idle_ns: int) -> int | None:
        found = world()
        came_beside_others(found, VOICE_NS)
        came_ns = found.clock.now_ns()
        found.clock.advance(idle_ns - MS * 100)
        submit(found, ttft_ns, prompt=600)
        found.step()
        assert found.clock.now_ns() - came_ns >= idle_ns - MS * 100
        return last_target(found)

    assert target(expected_ns) == int(share * VOICE_NS)
    assert target(expected_ns + 200 * MS) is None
    assert EXPECTED_NS < EXPECTED_BESIDE_LOOSER_NS


def test_the_bound_for_looser_prompts_does_not_cut_the_prompt_that_they_make_room_for() -> None:
    """Steps of 60 ms leave 37 ms beside three decodes, and 52 ms to voice: its prompt of 50 ms is
    computed whole, and the batch job waits."""
    found = world(slo_order=True)
    found.submit(4, max_tokens=100)
    came_beside_others(found, VOICE_NS)
    for _ in range(2):
        found.submit(4, max_tokens=100)
    batch = submit(found, BATCH_NS, prompt=600)
    found.step()
    found.step()
    voice = submit(found, VOICE_NS, prompt=50)
    found.step()
    rows = {row.seq_id: row.tokens for row in found.steps[-1].rows if row.is_prefill}

    assert rows == {voice: 50}
    found.step()
    assert [row.seq_id for row in found.steps[-1].rows if row.is_prefill] == [batch]
    assert last_target(found) == int(SHARE_BESIDE_LOOSER * VOICE_NS)


def test_looser_prompts_do_not_make_the_first_token_late_that_their_step_ends_with() -> None:
    """Voice has waited for a long step, and has 35 ms left: the batch job gets what its own prompt
    of 10 ms leaves of them, and not all of the 60 ms. What is late already holds up nobody."""

    def step_ns(left_ns: int) -> int:
        found = world(slo_order=True)
        came_beside_others(found, VOICE_NS)
        submit(found, BATCH_NS, prompt=600)
        found.step()
        by_ns = found.clock.now_ns() + left_ns
        found.submit(10, first_token_by_ns=by_ns, ttft_target_ns=VOICE_NS)
        found.step()
        step = found.steps[-1]
        assert len(step.rows) == 2
        return step.sample_ns - step.forward_ns

    assert 25 * MS < step_ns(35 * MS) <= 35 * MS
    assert step_ns(5 * MS) > 50 * MS
    assert 50 * MS < step_ns(VOICE_NS) <= 60 * MS


def test_rows_that_decode_may_have_a_tighter_bound() -> None:
    found = world()
    submit(found, CHAT_NS, max_tokens=50, itl_target_ns=45 * MS)
    found.step()
    submit(found, VOICE_NS)
    submit(found, BATCH_NS, prompt=600)
    found.step()

    assert last_target(found) == min(45 * MS, int(SHARE_BESIDE_LOOSER * VOICE_NS))


def test_a_step_of_decodes_alone_is_bounded_by_their_target_only() -> None:
    found = world()
    came_beside_others(found, VOICE_NS)
    found.submit(4, max_tokens=50, itl_target_ns=90 * MS)
    found.step()
    found.step()

    assert last_target(found) == 90 * MS


def test_with_a_fixed_budget_nobody_is_waited_for() -> None:
    found = world(auto_budget=False)
    came_beside_others(found, VOICE_NS)
    submit(found, BATCH_NS, prompt=600)
    found.step()

    assert last_target(found) is None
