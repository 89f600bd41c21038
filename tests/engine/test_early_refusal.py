"""`refuse_late`: a request is refused at once if its first token cannot come in time."""

from __future__ import annotations

import pytest

from lab.simulation.sim_executor import LinearCost
from service.engine.fairness import Policy
from service.engine.inbox import Pause
from telemetry.facts.engine_records import SequenceRefused
from telemetry.facts.reasons import EndReason
from tests.support.worlds.engine_world import World

MS = 1_000_000
COST = LinearCost(prefill_token_ns=MS)
VOICE, CHAT, BATCH = 150 * MS, 1000 * MS, 60_000 * MS


def world(**limits: object) -> World:
    defaults: dict[str, object] = {
        "refuse_late": True, "slo_order": True, "auto_budget": True, "budget_tokens": 64,
        "blocks_total": 2000, "max_model_tokens": 1024, "prefix_cache": False,
    }  # fmt: skip
    found = World(cost=COST, **{**defaults, **limits})  # type: ignore[arg-type]
    found.inbox.put(COST.as_fitted())
    return found


def submit(found: World, ttft_ns: int, prompt: int = 8, **fields: object) -> int:
    defaults: dict[str, object] = {"max_tokens": 2}
    return found.submit(
        prompt,
        first_token_by_ns=found.clock.now_ns() + ttft_ns,
        ttft_target_ns=ttft_ns,
        **{**defaults, **fields},  # type: ignore[arg-type]
    )


def refused(found: World) -> dict[int, str | None]:
    """The refused sequences, with the seconds after which each could come again."""
    return {
        seq_id: found.details[seq_id]
        for seq_id, ends in found.ends.items()
        if ends == [EndReason.TTFT_UNREACHABLE]
    }


def busy(found: World, prompt: int = 600, ttft_ns: int = CHAT, **fields: object) -> int:
    """A prompt that is being computed."""
    seq_id = submit(found, ttft_ns, prompt, **fields)
    found.step()
    return seq_id


def test_a_request_behind_prompts_that_take_its_time_is_refused() -> None:
    found = world()
    for _ in range(3):
        submit(found, CHAT, prompt=300)
    doomed, small = submit(found, CHAT, prompt=300), submit(found, CHAT, prompt=50)
    found.run()

    assert refused(found) == {doomed: "1"}
    assert [f.seq_id for f in found.facts if isinstance(f, SequenceRefused)] == [doomed]
    assert found.ends[small] == [EndReason.MAX_TOKENS]


def test_the_seconds_to_wait_are_those_of_the_prompts_before_it() -> None:
    found = world(slo_order=False)
    busy(found, prompt=1000, ttft_ns=BATCH)
    busy(found, prompt=1000, ttft_ns=BATCH)
    late = submit(found, CHAT, prompt=500)
    found.step()

    assert refused(found) == {late: "2"}


def test_a_prompt_that_alone_takes_longer_has_no_time_to_come_again() -> None:
    found = world()
    busy(found)
    late = submit(found, VOICE, prompt=500)
    found.step()

    assert refused(found) == {late: None}


def test_nothing_is_refused_unless_that_is_on() -> None:
    found = world(refuse_late=False)
    for _ in range(5):
        busy(found)
    submit(found, VOICE, prompt=500)
    found.run()

    assert refused(found) == {}


def test_without_a_cost_only_what_is_due_already_is_refused() -> None:
    found = World(refuse_late=True, max_model_tokens=1024, blocks_total=2000, budget_tokens=64)
    busy(found)
    near, over = submit(found, VOICE, prompt=900), submit(found, -1)
    found.step()

    assert list(refused(found)) == [over]
    assert near not in refused(found)


def test_an_engine_without_work_refuses_nobody() -> None:
    """Though the prompt alone takes too long, and though decodes slowed the last prompts down."""
    found = world()
    found.submit(4, max_tokens=20, itl_target_ns=22 * MS)
    found.step()
    submit(found, BATCH)
    found.run()
    submit(found, VOICE, prompt=900)
    found.run()

    assert refused(found) == {}


def test_of_two_that_find_it_idle_the_second_waits_for_the_first_alone() -> None:
    """Not at the pace of prompts beside decodes, which have ended."""
    found = world()
    found.submit(4, max_tokens=20, itl_target_ns=22 * MS)
    found.step()
    submit(found, BATCH)
    found.run()
    submit(found, CHAT, prompt=200)
    submit(found, CHAT, prompt=200)
    found.run()

    assert refused(found) == {}


@pytest.mark.parametrize("fields", [{"priority": 0}, {"priority": 1}], ids=["slack", "class"])
def test_prompts_that_come_after_it_refuse_nobody(fields: dict[str, int]) -> None:
    """A batch job of many prompts waits behind voice, by slack or by its class."""
    found = world(max_seqs=2)
    for _ in range(20):
        submit(found, BATCH, prompt=500, **fields)
    found.step()
    voice = submit(found, VOICE, prompt=8)
    found.step()

    assert refused(found) == {}
    assert voice in {row.seq_id for row in found.steps[-1].rows}


def test_in_the_order_of_arrival_the_same_prompts_come_before_it() -> None:
    found = world(max_seqs=2, slo_order=False)
    for _ in range(20):
        submit(found, BATCH, prompt=500)
    found.step()
    voice = submit(found, VOICE, prompt=8)
    found.step()

    assert list(refused(found)) == [voice]


def test_anothers_flood_refuses_nobody_who_has_his_own_share() -> None:
    found = world(policy=Policy.VTC, max_seqs=2, slo_order=False)
    for _ in range(20):
        submit(found, BATCH, prompt=500, tenant="flood")
    found.step()
    calm = submit(found, CHAT, prompt=100, tenant="calm")
    found.step()

    assert refused(found) == {}
    found.run()
    assert found.ends[calm] == [EndReason.MAX_TOKENS]


def test_who_cannot_run_now_delays_nobody() -> None:
    found = world()
    slow = busy(found, prompt=1000, ttft_ns=CHAT)
    found.inbox.put(Pause(slow))
    found.step()
    submit(found, 500 * MS, prompt=300)
    found.step()

    assert refused(found) == {}


def with_late_voice(late_ms: int) -> tuple[World, int]:
    """A prompt of 950 ms for a target of 1000 ms, ten of 8 ms that have waited for `late_ms`."""
    found = world(max_seqs=1, auto_budget=False)
    submit(found, BATCH, max_tokens=50)
    found.step()
    for _ in range(10):
        submit(found, VOICE, prompt=8)
    while found.clock.now_ns() < late_ms * MS:
        assert found.loop.has_work
        found.step()
    last = submit(found, CHAT, prompt=950)
    found.step()
    return found, last


def test_prompts_that_are_late_themselves_wait_behind_it() -> None:
    found, last = with_late_voice(400)

    assert found.scheduler.waiting == 11
    assert last not in refused(found)


def test_prompts_that_are_overdue_come_before_it() -> None:
    """Voice waits for 150 ms, 300 ms and 600 ms; then it goes first."""
    found, last = with_late_voice(700)

    assert last in refused(found)
