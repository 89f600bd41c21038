"""Who is next, and what drafts, pauses and limits may not do to others."""

from __future__ import annotations

from service.engine.fairness import Policy, TenantCounters
from service.engine.inbox import Pause, Resume
from telemetry.facts.engine_records import SequenceAdmitted, StepRecorded
from telemetry.facts.reasons import EndReason, WaitReason
from tests.support.worlds.engine_world import World


def fair(**limits: object) -> World:
    settings: dict[str, object] = {
        "policy": Policy.VTC, "budget_tokens": 16, "max_seqs": 8, "prefix_cache": False,
        "blocks_total": 400,
    }  # fmt: skip
    return World(**{**settings, **limits})  # type: ignore[arg-type]


def order(world: World) -> list[int]:
    """Sequences in the order of their admission."""
    return [fact.seq_id for fact in world.facts if isinstance(fact, SequenceAdmitted)]


def chunk_steps(world: World, seq_id: int) -> list[int]:
    return [
        step.step_id
        for step in world.steps
        for row in step.rows
        if row.seq_id == seq_id and row.is_prefill
    ]


def test_a_tenant_that_floods_delays_another_by_less_than_one_of_its_prompts() -> None:
    """The newcomer goes before the flood's prompt that is being computed, and is not
    computed in turns with the flood's other prompts."""
    world = fair()
    world.submit(40, max_tokens=2, tenant="flood")
    world.run()
    for _ in range(6):
        world.submit(40, max_tokens=2, tenant="flood")
    world.step()
    calm = world.submit(40, max_tokens=2, tenant="calm")
    world.run()

    steps = chunk_steps(world, calm)
    first = chunk_steps(world, 1)[0]
    assert steps[0] == first + 1
    assert steps == list(range(steps[0], steps[0] + len(steps)))


def test_first_come_first_served_makes_the_same_newcomer_wait_for_all() -> None:
    world = fair(policy=Policy.FCFS)
    for _ in range(6):
        world.submit(40, max_tokens=2, tenant="flood")
    world.step()
    calm = world.submit(40, max_tokens=2, tenant="calm")
    world.run()

    assert order(world)[-1] == calm


def test_an_idle_tenant_gains_no_credit() -> None:
    """A tenant that was away for long gets its share, and not what it did not use."""
    counters = TenantCounters()
    counters.add_prefill("busy", 10_000)
    counters.tenant_queued("back", 9_000)

    assert counters.service_of("back") == 8_999
    counters.tenant_queued("busy", 500)
    assert counters.service_of("busy") == 10_000


def test_a_tenant_at_its_limit_does_not_lower_the_counter_of_one_that_comes_back() -> None:
    world = fair(tenant_max_seqs=1, max_seqs=3)
    world.submit(4, max_tokens=50, tenant="capped")
    world.submit(4, max_tokens=50, tenant="capped")
    for _ in range(4):
        world.step()
    counters = world.scheduler.table.counters
    counters.add_prefill("busy", 5_000)
    for _ in range(2):
        world.submit(40, max_tokens=30, tenant="busy")
    world.step()
    world.submit(4, max_tokens=2, tenant="back")
    world.step()

    assert counters.service_of("back") >= 4_999
    world.run()


def test_a_better_priority_goes_first_and_a_long_wait_makes_up_for_a_worse_one() -> None:
    world = World(max_seqs=1, budget_tokens=16, ageing_ns=10**12)
    first = world.submit(8, max_tokens=60)
    world.step()
    low = world.submit(8, max_tokens=2, priority=1)
    world.step()
    high = world.submit(8, max_tokens=2, priority=-1)
    world.run()
    assert order(world) == [first, high, low]

    aged = World(max_seqs=1, budget_tokens=16, ageing_ns=1)
    first = aged.submit(8, max_tokens=60)
    aged.step()
    low = aged.submit(8, max_tokens=2, priority=1)
    aged.step()
    high = aged.submit(8, max_tokens=2, priority=-1)
    aged.run()
    assert order(aged) == [first, low, high]


def test_drafts_leave_prompts_their_part_of_the_budget() -> None:
    """Eight quoting sequences with long drafts, and one that wants to come in."""
    world = World(
        max_seqs=9, budget_tokens=32, draft_tokens=8, blocks_total=200, prefix_cache=False
    )
    quote = [1, 2, 3, 4, 5] * 6
    for _ in range(8):
        world.submit(1, max_tokens=30, given=quote)
    for _ in range(10):
        world.step()
    late = world.submit(16, max_tokens=2)
    for _ in range(8):
        world.step()

    assert chunk_steps(world, late)
    world.run()


def test_drafts_preempt_no_sequence() -> None:
    """With and without drafts, the same sequences are preempted equally often."""
    counts = []
    for draft_tokens in (0, 6):
        world = World(
            blocks_total=20, max_seqs=4, draft_tokens=draft_tokens, prefix_cache=False,
            max_model_tokens=40,
        )  # fmt: skip
        for _ in range(4):
            world.submit(1, max_tokens=16, given=[1, 2, 3] * 5)
        world.run()
        counts.append(sum(len(step.preempted) for step in world.steps))

    assert counts[1] <= counts[0]


def test_resumed_sequences_do_not_lift_a_tenant_over_its_limit() -> None:
    world = fair(tenant_max_seqs=1)
    first = world.submit(4, max_tokens=20, tenant="t")
    world.step()
    world.inbox.put(Pause(first))
    second = world.submit(4, max_tokens=20, tenant="t")
    world.step()
    world.inbox.put(Resume(first))
    for _ in range(5):
        world.step()
        assert world.scheduler.table.running_of("t") <= 1
    world.run()

    assert world.ends[first] == world.ends[second] == [EndReason.MAX_TOKENS]


def test_a_paused_sequence_is_preempted_only_if_the_next_one_is_then_admitted() -> None:
    """Its blocks alone would not be enough, so it keeps them."""
    world = World(blocks_total=17, max_model_tokens=64, max_seqs=2, budget_tokens=64)
    small = world.submit(8, max_tokens=3)
    large = world.submit(48, max_tokens=10)
    world.step()
    world.inbox.put(Pause(small))
    world.submit(60, max_tokens=2)
    world.step()

    assert not any(small in step.preempted for step in world.steps)
    world.inbox.put(Resume(small))
    world.run()
    assert world.ends[large] == [EndReason.MAX_TOKENS]


def test_a_preemption_in_an_empty_plan_is_recorded_with_the_next_step() -> None:
    """Facts must agree with what SequenceEnded counts."""
    world = World(blocks_total=16, max_seqs=4, depth=2, prefix_cache=False, max_model_tokens=64)
    for _ in range(4):
        world.submit(12, max_tokens=30)
    world.run()
    told = sum(len(f.preempted) for f in world.facts if isinstance(f, StepRecorded))
    ended = [fact for facts in world.terminal_facts.values() for fact in facts]

    assert told == sum(fact.preemptions for fact in ended) > 0


def test_the_reason_of_a_wait_is_the_limit_that_binds() -> None:
    world = fair(tenant_max_seqs=1)
    world.submit(4, max_tokens=20, tenant="t")
    waiting = world.submit(4, max_tokens=20, tenant="t")
    world.step()
    world.step()

    reasons = {skip.reason for step in world.steps for skip in step.skips if skip.seq_id == waiting}
    assert reasons == {WaitReason.POLICY}
    world.run()
