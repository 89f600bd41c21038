"""Limits that change while the engine runs: what runs goes on, what comes later obeys."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lab.replay.recorded import read_runs
from lab.replay.replay_exact import replay_exactly
from lab.simulation.scenarios import build_scenario, small_limits
from lab.simulation.workload import Arrival
from lab.simulation.world import Scenario
from lab.simulation.world import World as SimWorld
from service.engine.fairness import DECODE_WEIGHT, Policy, service_bound
from service.engine.inbox import SetLimits
from service.engine.limits_record import LimitError, runtime_of, with_runtime
from telemetry.facts.engine_records import (
    LimitsSet,
    SequenceAdmitted,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.limits import changed_names, named
from telemetry.facts.reasons import EndReason, WaitReason
from tests.support.worlds.engine_world import World


def set_limits(world: World, **fields: Any) -> None:
    """Before the next step."""
    before = runtime_of(world.scheduler.limits)
    wanted = msgspec.structs.replace(before, **fields)
    changed = changed_names(before, wanted)
    world.inbox.put(SetLimits(limits=wanted, changed=changed, by="test", why="to see"))


def tokens_of(world: World, sequences: list[int]) -> int:
    return sum(len(world.outputs[seq_id]) for seq_id in sequences)


def admitted_since(world: World, first_fact: int) -> list[int]:
    facts = world.facts[first_fact:]
    return [fact.seq_id for fact in facts if isinstance(fact, SequenceAdmitted)]


def test_sequences_that_run_beyond_a_lowered_batch_all_go_on_and_none_is_added() -> None:
    world = World(max_seqs=6, prefix_cache=False)
    running = [world.submit(2, max_tokens=12) for _ in range(6)]
    for _ in range(3):
        world.step()
    waiting = world.submit(2, max_tokens=4)
    set_limits(world, max_seqs=2)
    world.step()

    assert len(world.steps[-1].rows) == 6
    assert [skip.reason for skip in world.steps[-1].skips] == [WaitReason.SEQS]
    world.run()
    assert all(world.ends[seq_id] == [EndReason.MAX_TOKENS] for seq_id in [*running, waiting])
    late = next(step for step in world.steps if any(r.seq_id == waiting for r in step.rows))
    assert late.running <= 2


@pytest.mark.parametrize("target_ns", [None, 1])
def test_a_budget_below_what_runs_still_gives_each_sequence_its_token(
    target_ns: int | None,
) -> None:
    """And leaves nothing to prompts, which go on when there is room again."""
    world = World(max_seqs=6, budget_tokens=32, prefix_cache=False)
    for _ in range(5):
        world.submit(2, max_tokens=20)
    world.step()
    long = world.submit(60, max_tokens=2)
    world.step()
    set_limits(world, max_seqs=1, budget_tokens=1, itl_target_ns=target_ns)
    for _ in range(4):
        world.step()
        step = world.steps[-1]
        assert sum(not row.is_prefill for row in step.rows) == 5
        assert sum(row.tokens for row in step.rows) <= step.budget_tokens <= 6
    world.run()
    assert world.ends[long] == [EndReason.MAX_TOKENS]


def test_a_prefix_is_not_reused_while_the_cache_is_off_and_is_again_afterwards() -> None:
    world = World()
    prompt = list(range(16))

    def hit_tokens() -> int:
        seq_id = world.submit(0, max_tokens=2, given=prompt)
        world.run()
        return next(
            fact.hit_tokens
            for fact in world.facts
            if isinstance(fact, SequenceAdmitted) and fact.seq_id == seq_id
        )

    assert (hit_tokens(), hit_tokens()) == (0, 12)
    set_limits(world, prefix_cache=False)
    assert (hit_tokens(), hit_tokens()) == (0, 0)
    set_limits(world, prefix_cache=True)
    assert hit_tokens() == 12
    world.run()


def test_a_sequence_of_the_time_without_a_cache_is_never_shared() -> None:
    world = World()
    set_limits(world, prefix_cache=False)
    first = world.submit(0, max_tokens=30, given=list(range(16)))
    world.step()
    set_limits(world, prefix_cache=True)
    world.step()
    world.submit(0, max_tokens=2, given=list(range(16)))
    world.run()

    hits = [fact.hit_tokens for fact in world.facts if isinstance(fact, SequenceAdmitted)]
    assert (hits, world.ends[first]) == ([0, 0], [EndReason.MAX_TOKENS])
    assert world.scheduler.prefix.flush() == 4, "the prompt of the second one, in blocks of four"


def test_a_sequence_that_waits_when_the_cache_is_turned_on_shares_blocks() -> None:
    """Else what has queued up without the cache would be computed in full."""
    world = World(max_seqs=1)
    set_limits(world, prefix_cache=False)
    for _ in range(3):
        world.submit(0, max_tokens=8, given=list(range(16)))
    world.step()
    set_limits(world, prefix_cache=True)
    world.run()

    hits = [fact.hit_tokens for fact in world.facts if isinstance(fact, SequenceAdmitted)]
    assert hits == [0, 0, 12]


def test_prompts_have_names_in_the_record_while_the_cache_is_turned_off() -> None:
    """Equal ones the same, so that a replay can say what the cache would be worth; not where the
    server started without one."""
    for at_start, known in ((True, True), (False, False)):
        world = World(prefix_cache=at_start)
        if at_start:
            set_limits(world, prefix_cache=False)
            world.step()
        for first in (0, 0, 50):
            world.submit(0, max_tokens=9, given=list(range(first, first + 16)))
        world.run()

        names = [fact.blocks for fact in world.facts if isinstance(fact, SequenceQueued)]
        if known:
            assert names[0] == names[1] != names[2]
        assert [one is not None for one in names] == [known] * 3


def test_weights_change_the_shares_of_tenants_that_wait() -> None:
    """Both have work for the whole time; their counters stay within the bound of the weights."""
    world = World(
        policy=Policy.VTC, max_seqs=2, budget_tokens=16, prefix_cache=False, blocks_total=400,
        queue_limit_requests=1000,
    )  # fmt: skip
    mine = {"a": list[int](), "b": list[int]()}
    for _ in range(300):
        for tenant, ids in mine.items():
            ids.append(world.submit(4, max_tokens=4, tenant=tenant))
    for _ in range(300):
        world.step()
    equal = {tenant: tokens_of(world, ids) for tenant, ids in mine.items()}
    assert equal["a"] == pytest.approx(equal["b"], rel=0.1)

    set_limits(world, tenant_weights={"a": 3.0, "b": 0.5})
    bound = service_bound(world.limits.max_model_tokens, 2, least_weight=0.5)
    assert bound == 2 * DECODE_WEIGHT * 2 * 64 / 0.5
    for _ in range(300):
        world.step()
        assert world.scheduler.table.queue.tenants == {"a", "b"}
        counters = world.scheduler.table.counters
        assert abs(counters.service_of("a") - counters.service_of("b")) <= bound
    now = {tenant: tokens_of(world, ids) - equal[tenant] for tenant, ids in mine.items()}
    assert now["a"] / now["b"] == pytest.approx(6, rel=0.15)


def test_a_lowered_queue_limit_keeps_who_waits_and_refuses_who_comes() -> None:
    world = World(max_seqs=1)
    early = [world.submit(4, max_tokens=4) for _ in range(5)]
    world.step()
    set_limits(world, queue_limit_requests=1)
    late = world.submit(4, max_tokens=4)
    world.run()

    assert all(world.ends[seq_id] == [EndReason.MAX_TOKENS] for seq_id in early)
    assert world.ends[late] == [EndReason.QUEUE_FULL]


def test_a_lowered_limit_of_a_tenant_lets_its_sequences_run_out() -> None:
    world = World(max_seqs=4, prefix_cache=False)
    for _ in range(4):
        world.submit(2, max_tokens=6, tenant="t")
    world.step()
    more = [world.submit(2, max_tokens=2, tenant="t") for _ in range(2)]
    set_limits(world, tenant_max_seqs=1)
    first = len(world.facts)
    world.step()
    assert (world.scheduler.running, admitted_since(world, first)) == (4, [])
    world.run()
    assert admitted_since(world, first) == more
    rows = [step for step in world.steps if any(row.seq_id in more for row in step.rows)]
    assert {len(step.rows) for step in rows} == {1}


def test_drafts_stop_and_come_back() -> None:
    """The device's outputs repeat, so that they can be foretold."""
    second = 1_000_000_000
    limits = small_limits(draft_tokens=3)
    on = runtime_of(limits)
    off = msgspec.structs.replace(on, draft_tokens=0)
    commands = tuple(
        (at * second, SetLimits(limits=one, changed=("speculative_tokens",), by="test", why=""))
        for at, one in ((10, off), (20, on))
    )
    prompt = tuple(range(4))
    arrivals = tuple(Arrival(at_ns=at * second, prompt=prompt, max_tokens=40) for at in (1, 11, 21))
    scenario = Scenario(
        name="drafts", seed=1, limits=limits, arrivals=arrivals, commands=commands, period=3
    )
    drafted = [0, 0, 0]
    for fact in SimWorld(scenario).run().facts:
        if isinstance(fact, StepRecorded):
            drafts = sum(row.tokens - 1 for row in fact.rows if not row.is_prefill)
            drafted[fact.begin_ns // (10 * second)] += drafts
    assert drafted[0] == drafted[2] > 0 == drafted[1]


def test_the_fact_says_all_limits_what_changed_who_and_why() -> None:
    world = World()
    set_limits(world, max_seqs=3, tenant_weights={"a": 2.0})
    world.step()
    (fact,) = [fact for fact in world.facts if isinstance(fact, LimitsSet)]

    assert fact.changed == ("max_num_seqs", "tenant_weights")
    assert (fact.by, fact.why, fact.step_id) == ("test", "to see", 0)
    assert named(fact.limits)["max_num_seqs"] == 3
    assert fact.limits == runtime_of(world.scheduler.limits)


@pytest.mark.parametrize(
    ("fields", "name", "allowed"),
    [
        ({"max_seqs": 9}, "max_num_seqs", "1 to 8"),
        ({"max_seqs": 0}, "max_num_seqs", "1 to 8"),
        ({"budget_tokens": 17}, "max_batched_tokens", "at most 16"),
        ({"budget_tokens": 7}, "max_batched_tokens", "at least 8"),
        ({"budget_tokens": 17, "auto_budget": True}, "max_auto_tokens", "at most 16"),
        ({"draft_tokens": 1}, "speculative_tokens", "without --speculative-tokens"),
        ({"tenant_weights": {"a": 0.0}}, "tenant_weights", "above 0"),
    ],
)
def test_what_the_start_made_impossible_is_refused_by_its_name(
    fields: dict[str, Any], name: str, allowed: str
) -> None:
    started = small_limits()
    wanted = msgspec.structs.replace(runtime_of(started), **fields)
    with pytest.raises(LimitError, match=allowed) as refused:
        with_runtime(started, wanted)
    assert refused.value.name == name
    assert str(refused.value).startswith(f"{name}: ")


def test_no_cache_at_the_start_is_no_cache_for_good() -> None:
    started = small_limits(prefix_cache=False)
    wanted = msgspec.structs.replace(runtime_of(started), prefix_cache=True)
    with pytest.raises(LimitError, match="--no-prefix-cache"):
        with_runtime(started, wanted)


def test_runs_whose_limits_changed_replay_without_a_difference() -> None:
    changes = 0
    for seed in range(60):
        facts = SimWorld(build_scenario("chaos", seed)).run().facts
        changes += sum(isinstance(fact, LimitsSet) for fact in facts)
        for run in read_runs(facts):
            assert replay_exactly(run).difference is None
    assert changes > 30
