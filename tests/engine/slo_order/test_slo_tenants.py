"""Tenants whose requests have targets, how many are in time, and plans that stay empty."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from lab.simulation.scenarios import build_scenario, small_limits
from lab.simulation.workload import Mix, bursts
from lab.simulation.world import Scenario
from lab.simulation.world import World as SimWorld
from service.engine.fairness import Policy
from telemetry.facts.engine_records import SequenceAdmitted, SequenceQueued, StepRecorded
from telemetry.facts.records import Fact
from tests.engine.slo_order.slo_world import (
    BATCH,
    CHAT,
    VOICE,
    order,
    submit,
    world,
)

# --- tenants ------------------------------------------------------------------------------------


def test_a_tenant_cannot_take_anothers_share_by_a_tighter_target() -> None:
    """Fair shares come before slack: a flood of voice delays a batch job by its own share only."""
    found = world(policy=Policy.VTC, max_seqs=8, budget_tokens=16)
    for _ in range(12):
        submit(found, VOICE, prompt=40, tenant="flood")
    found.step()
    calm = submit(found, BATCH, prompt=40, tenant="calm")
    found.run()

    assert order(found).index(calm) <= 2


def test_what_a_tenant_started_while_it_was_alone_holds_up_no_other() -> None:
    """Its prompts were admitted with little service; what counts is what it has had by now."""
    found = world(policy=Policy.VTC, max_seqs=4, max_model_tokens=256, budget_tokens=16)
    submit(found, BATCH, prompt=40, tenant="calm")
    found.run()
    for _ in range(2):
        submit(found, BATCH, prompt=200, tenant="flood")
    found.step()
    calm = submit(found, BATCH, prompt=16, tenant="calm")
    found.step()

    assert [row.seq_id for row in found.steps[-1].rows] == [calm]


@pytest.mark.parametrize("slo_order", [False, True])
def test_service_of_two_busy_tenants_stays_equal(slo_order: bool) -> None:
    """Whatever their classes: invariant 8 holds the bound at every step, and the work of each is
    done at about the same time."""
    limits = small_limits(
        policy=Policy.VTC, max_seqs=2, slo_order=slo_order, auto_budget=True, blocks_total=64
    )
    first = Mix(Random(1), 64, tenants=("voice",), classes=("voice",))
    second = Mix(Random(1), 64, tenants=("batch",), classes=("batch",))
    arrivals = [*bursts(first, 20, 20, 1), *bursts(second, 20, 20, 1)]
    scenario = Scenario(
        name="shares", seed=0, limits=limits, arrivals=tuple(arrivals), knows_cost=True
    )
    facts = SimWorld(scenario).run().facts
    tenants = {f.seq_id: f.tenant for f in facts if isinstance(f, SequenceQueued)}
    admitted = [tenants[f.seq_id] for f in facts if isinstance(f, SequenceAdmitted)]
    half = admitted[: len(admitted) // 2]

    assert abs(half.count("voice") - half.count("batch")) <= 4


def in_time(facts: list[Fact]) -> int:
    """Sequences whose first token came within their target."""
    due = {f.seq_id: f.first_token_by_ns for f in facts if isinstance(f, SequenceQueued)}
    first: dict[int, int] = {}
    for fact in facts:
        for row in fact.rows if isinstance(fact, StepRecorded) else ():
            if row.sampled:
                first.setdefault(row.seq_id, fact.committed_ns)
    return sum(by_ns is not None and first[one] <= by_ns for one, by_ns in due.items())


def test_slack_makes_more_requests_good_than_the_order_of_arrival() -> None:
    """Voice beside batch jobs: first tokens within their targets."""

    def good(slo_order: bool) -> int:
        total = 0
        for seed in range(10):
            scenario = build_scenario("classes", seed)
            limits = replace(scenario.limits, slo_order=slo_order)
            total += in_time(list(SimWorld(replace(scenario, limits=limits)).run().facts))
        return total

    assert good(True) > good(False)


# --- plans that stay empty ----------------------------------------------------------------------


def test_a_plan_that_stays_empty_makes_nobody_late() -> None:
    """It is not recorded: an exact replay does not make it, and has to decide the same later."""
    found = world(depth=2)
    submit(found, CHAT, max_tokens=1)
    found.step()
    waiting = found.submit(8, first_token_by_ns=1, ttft_target_ns=1)
    found.loop.apply_commands()
    scheduler = found.scheduler
    cost = scheduler._planner.cost
    cost.stretch = 3.0

    assert scheduler.plan(found.clock.now_ns()).is_empty
    assert not scheduler.table.live[waiting].late
    assert cost.stretch == 3.0
    assert len(scheduler.table.queue) == 1
    found.run()
    assert waiting in order(found)
