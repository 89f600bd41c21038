"""The least slack goes first, within class and tenant; what is late waits, but not for ever."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.fairness import Policy
from service.engine.inbox import SetLimits
from service.engine.limits_record import runtime_of
from service.engine.planning.slack import DEADLINES, is_late, is_overdue, start_by_ns, work_ns
from telemetry.facts.engine_records import SequenceAdmitted
from telemetry.facts.limits import changed_names
from tests.engine.slo_order.slo_world import (
    BATCH,
    CHAT,
    MS,
    VOICE,
    order,
    request,
    run_until,
    submit,
    world,
)
from tests.support.worlds.engine_world import World

# --- when a prompt has to start -----------------------------------------------------------------


def test_a_prompt_has_to_start_its_own_length_before_its_deadline() -> None:
    one = request(100, by_ns=1000 * MS, target_ns=1000 * MS)

    assert work_ns(one, MS) == 100 * MS
    assert start_by_ns(one, 0, MS, 30_000 * MS) == 900 * MS
    assert not is_late(one, 900 * MS, MS)
    assert is_late(one, 900 * MS + 1, MS)


@given(
    prompt=st.integers(1, 1000), target_ns=st.integers(1, 10**10), now_ns=st.integers(0, 10**12),
    token_ns=st.floats(0, 10**7), tighter_ns=st.sampled_from([0, 10**6]),
    overdue_first=st.booleans(),
)  # fmt: skip
def test_a_missed_deadline_comes_again_twice_behind_all_in_time_and_then_it_is_overdue(
    prompt: int,
    target_ns: int,
    now_ns: int,
    token_ns: float,
    tighter_ns: int,
    overdue_first: bool,
) -> None:
    one = request(prompt, by_ns=target_ns, target_ns=target_ns)
    key = start_by_ns(one, now_ns, token_ns, 10**12, tighter_ns, overdue_first)
    work = work_ns(one, token_ns)
    in_time = [times for times in DEADLINES if times * target_ns - work >= now_ns]

    assert is_late(one, now_ns, token_ns) == (1 not in in_time)
    assert is_overdue(one, now_ns, token_ns) == (not in_time)
    if not in_time:
        behind_ns = (1 << 62) + (now_ns + 4 * tighter_ns if tighter_ns else 0)
        is_first = overdue_first and not tighter_ns
        assert key == (0 if is_first else pytest.approx(behind_ns, abs=2048))
    elif in_time[0] == 1:
        assert key == target_ns - work
    else:
        due_ns = in_time[0] * target_ns - work
        assert key == pytest.approx(due_ns + (1 << 62), abs=2048)
        assert key > now_ns + 10**13


def test_without_a_target_a_request_is_due_when_it_has_aged() -> None:
    one = request(100, None, None, queued_ns=5000 * MS)

    assert start_by_ns(one, 6000 * MS, MS, 30_000 * MS) == 34_900 * MS
    assert not is_late(one, 10**15, MS)


# --- the order of the queue ---------------------------------------------------------------------


def test_the_tighter_target_goes_first_though_it_came_later() -> None:
    found = world()
    busy = submit(found, CHAT, max_tokens=5)
    found.step()
    batch, chat, voice = (submit(found, ttft) for ttft in (BATCH, CHAT, VOICE))
    found.run()

    assert order(found) == [busy, voice, chat, batch]


def test_in_the_order_of_arrival_targets_change_nothing() -> None:
    found = world(slo_order=False)
    busy = submit(found, CHAT, max_tokens=5)
    found.step()
    waiting = [submit(found, ttft) for ttft in (BATCH, CHAT, VOICE)]
    found.run()

    assert order(found) == [busy, *waiting]


def test_a_request_that_has_waited_goes_before_a_tighter_one_once_it_has_less_slack() -> None:
    found = world()
    submit(found, CHAT, max_tokens=46)
    found.step()
    chat = submit(found, CHAT)
    run_until(found, 900 * MS)
    voice = submit(found, VOICE)
    found.run()

    assert order(found).index(chat) < order(found).index(voice)


def test_of_one_target_the_first_goes_first_whatever_its_length() -> None:
    found = world(max_model_tokens=128)
    submit(found, CHAT, max_tokens=5)
    found.step()
    short, long = submit(found, CHAT, prompt=4), submit(found, CHAT, prompt=60)
    found.run()

    assert order(found)[1:] == [short, long]


def test_a_late_request_holds_up_none_that_can_be_in_time() -> None:
    found = world()
    submit(found, CHAT, max_tokens=20)
    found.step()
    late = submit(found, VOICE)
    run_until(found, 320 * MS)  # renewed at 300 ms, and that is over too
    voice = submit(found, VOICE)
    found.run()

    assert order(found).index(voice) < order(found).index(late)


def passed(found: World, waiting: int) -> int:
    """When it was admitted, though requests in time never stopped coming."""
    run_until(found, 320 * MS)
    while waiting not in order(found):
        assert found.clock.now_ns() < 3000 * MS
        submit(found, VOICE, max_tokens=1)
        found.step()
    return found.clock.now_ns()


def test_a_late_request_lets_others_pass_for_four_targets_and_goes_first_then() -> None:
    found = world(queue_limit_requests=1000)
    submit(found, CHAT, max_tokens=20)
    found.step()
    waiting = submit(found, VOICE)
    by_ns = found.clock.now_ns() + 4 * VOICE

    assert by_ns - 60 * MS < passed(found, waiting) < by_ns + 60 * MS
    assert found.scheduler.waiting > 0
    found.run()


def test_overdue_requests_leave_half_of_the_steps_to_those_in_time() -> None:
    """Where more comes than can be served, serving all by arrival would make every one late."""
    found = world(max_seqs=32, budget_tokens=32, queue_limit_requests=1000, blocks_total=2000)
    for _ in range(90):
        submit(found, VOICE, prompt=50, max_tokens=1)
    found.step()
    run_until(found, 1000 * MS)
    came = submit(found, VOICE, prompt=8, max_tokens=1)
    by_ns, before = found.clock.now_ns() + VOICE, len(found.steps)
    while not found.outputs[came]:
        found.step()

    assert found.clock.now_ns() < by_ns
    assert found.scheduler.waiting > 10
    for _ in range(2):
        found.step()
    firsts = [step.rows[0].seq_id for step in found.steps[before : before + 2]]
    assert sorted(one == came for one in firsts) == [False, True]


def test_an_overdue_request_lets_those_in_time_for_a_tighter_target_pass() -> None:
    """Or one batch job of many seconds would make all of voice late."""
    found = world(queue_limit_requests=1000)
    submit(found, CHAT, max_tokens=50)
    found.step()
    overdue = submit(found, 200 * MS)
    run_until(found, 1000 * MS)
    assert is_overdue(found.scheduler.table.live[overdue], found.clock.now_ns(), MS)
    same, voice = submit(found, 200 * MS), submit(found, VOICE)
    found.run()

    assert order(found)[1:] == [voice, overdue, same]


def test_an_overdue_request_lets_late_ones_with_a_tighter_target_pass() -> None:
    """On a machine that is too slow for voice, a batch job does not make it wait for seconds."""
    found = world(queue_limit_requests=1000)
    submit(found, CHAT, max_tokens=50)
    found.step()
    overdue = submit(found, 200 * MS)
    run_until(found, 800 * MS)
    voice = submit(found, VOICE)
    run_until(found, 1000 * MS)
    now_ns, live = found.clock.now_ns(), found.scheduler.table.live
    assert is_overdue(live[overdue], now_ns, MS)
    assert is_late(live[voice], now_ns, MS)
    assert not is_overdue(live[voice], now_ns, MS)
    found.run()

    assert order(found)[1:] == [voice, overdue]


@pytest.mark.parametrize("ttft_ns", [VOICE, None], ids=["late", "without a target"])
def test_it_is_served_when_it_has_aged_though_requests_in_time_never_stop_coming(
    ttft_ns: int | None,
) -> None:
    found = world(ageing_ns=2000 * MS, queue_limit_requests=1000)
    submit(found, CHAT, max_tokens=20)
    found.step()
    waiting = found.submit(8) if ttft_ns is None else submit(found, ttft_ns)
    run_until(found, 320 * MS)
    while waiting not in order(found):
        assert found.clock.now_ns() < 2200 * MS
        submit(found, VOICE, max_tokens=1)
        found.step()

    assert found.scheduler.waiting > 0
    found.run()


def test_a_better_class_goes_first_whatever_the_slack() -> None:
    found = world()
    submit(found, CHAT, max_tokens=5)
    found.step()
    voice, important = submit(found, VOICE), submit(found, BATCH, priority=-1)
    found.run()

    assert order(found)[1:] == [important, voice]


def test_a_prompt_with_less_slack_goes_before_one_that_is_being_computed() -> None:
    found = world(max_seqs=4, max_model_tokens=256, budget_tokens=16)
    batch = submit(found, BATCH, prompt=200)
    found.step()
    voice = submit(found, VOICE, prompt=16)
    found.step()

    assert [row.seq_id for row in found.steps[-1].rows] == [voice]
    found.run()
    assert order(found) == [batch, voice]


def test_a_preempted_sequence_goes_on_before_requests_that_are_late() -> None:
    """Its reader waits in the middle of a text; its first token came in time."""
    found = world(
        max_seqs=3, blocks_total=16, max_model_tokens=64, budget_tokens=16, policy=Policy.FCFS
    )
    for _ in range(3):
        submit(found, VOICE, prompt=8, max_tokens=40)
    found.step()
    while not any(step.preempted for step in found.steps):
        assert found.loop.has_work
        found.step()
    (victim,) = (seq_id for step in found.steps for seq_id in step.preempted)
    late = [found.submit(8, first_token_by_ns=1, ttft_target_ns=1) for _ in range(3)]
    late += [found.submit(8, first_token_by_ns=VOICE, ttft_target_ns=VOICE) for _ in range(3)]
    found.run()

    admitted = [fact.seq_id for fact in found.facts if isinstance(fact, SequenceAdmitted)]
    again = admitted.index(victim, admitted.index(victim) + 1)
    assert again < min(admitted.index(one) for one in late)


def test_the_order_changes_for_those_who_wait() -> None:
    found = world(slo_order=False)
    busy = submit(found, CHAT, max_tokens=5)
    found.step()
    batch, voice = submit(found, BATCH), submit(found, VOICE)
    found.step()
    before = runtime_of(found.scheduler.limits)
    wanted = msgspec.structs.replace(before, slo_order=True)
    found.inbox.put(
        SetLimits(limits=wanted, changed=changed_names(before, wanted), by="ann", why="")
    )
    found.run()

    assert order(found) == [busy, voice, batch]
