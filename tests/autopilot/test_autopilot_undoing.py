"""When the autopilot goes back, and how: what a replay says of it, an engine that dies meanwhile,
and a token budget that has two names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from diagnosis.autopilot.desk import State
from diagnosis.autopilot.memory import Memory
from diagnosis.autopilot.proposal import Values, leads_back
from telemetry.facts.engine_records import LimitsSet
from telemetry.facts.limits import LimitValue
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.reasons import AutopilotReason as Reason
from telemetry.facts.records import EngineDied
from tests.autopilot.test_autopilot import always, by_seqs, world
from tests.support.worlds.piloted import SECOND, Model, Shares, World, started

AUTOMATIC = replace(started(), auto_budget=True)


def until(found: World, holds: Callable[[World], object], seconds: int = 400) -> None:
    """Run until it holds."""
    for _ in range(2 * seconds):
        if holds(found):
            return
        found.run(0.5)
    raise AssertionError(f"not within {seconds} s: {found.decisions}")


def by_budget(good: float) -> Model:
    """A fixed budget of 64 tokens is better."""

    def shares(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        return {"chat": good if limits["max_batched_tokens"] == 64 else 0.4, "batch": 0.999}

    return shares


def with_automatic_budget(truth: Model) -> World:
    return World(truth=truth, candidates=[{"max_batched_tokens": 64}], engine=AUTOMATIC)


@pytest.mark.parametrize(
    ("name", "best", "ours", "back", "leads"),
    [
        ("max_num_seqs", 32, 16, 2, False),
        ("max_num_seqs", 8, 16, 2, True),
        ("max_num_seqs", 1, 16, 2, True),
        ("max_num_seqs", 2, 4, 8, False),
        ("tenant_max_seqs", 8, 4, None, True),
        ("tenant_max_seqs", 2, 4, None, False),
        ("tenant_max_seqs", 2, None, 4, True),
        ("order", "slo", "arrival", "slo", True),
        ("prefix_cache", False, True, False, True),
        ("max_batched_tokens", "auto", 64, "auto", True),
        ("max_batched_tokens", 32, 64, "auto", False),
        ("max_batched_tokens", 256, "auto", 512, True),
    ],
)
def test_only_a_value_on_the_side_of_the_old_one_is_a_reason_to_go_back(
    name: str, best: LimitValue, ours: LimitValue, back: LimitValue, leads: bool
) -> None:
    assert leads_back({name: best}, {name: ours}, {name: back}) is leads


def test_all_that_a_replay_wants_to_change_must_lead_back() -> None:
    ours: Values = {"max_num_seqs": 16, "max_batched_tokens": 64}
    back: Values = {"max_num_seqs": 2, "max_batched_tokens": "auto", "max_auto_tokens": 512}

    assert not leads_back({"order": "slo"}, ours, back)
    assert not leads_back({"max_num_seqs": 4, "max_batched_tokens": 32}, ours, back)
    assert leads_back({"max_batched_tokens": "auto", "max_auto_tokens": 8192}, ours, back)


def test_a_replay_that_wants_more_of_the_same_keeps_what_was_set() -> None:
    """The load trebles while 16 sequences are measured, and then 32 would be better still."""

    def truth(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        wanted, good = (16, 0.45) if rate < 10 else (32, 0.6)
        return {"chat": good if limits["max_num_seqs"] == wanted else 0.4, "batch": 0.999}

    found = world(truth, seed=2, rate=lambda at_s: 6.0 if at_s < 24 else 18.0).run(100)
    said = [(one.decision, one.reason) for one in found.decisions]

    assert found.told(Decision.APPLIED)[0].limits == {"max_num_seqs": 16}
    assert (Decision.VOIDED, Reason.LOAD_CHANGED) in said
    assert (Decision.KEPT, Reason.NO_GAIN_IN_GOING_BACK) in said
    assert (Decision.ROLLED_BACK, Reason.LOAD_CHANGED) not in said
    assert found.in_force["max_num_seqs"] != 4


def test_an_engine_that_dies_while_a_change_is_undone_has_the_old_value_in_the_end() -> None:
    """It starts with the old value, and then the owner of the limits restores the last one that the
    engine before had confirmed."""
    found = world(always(0.4), forecast=by_seqs())
    until(found, lambda w: w.told(Decision.APPLIED))
    found.confirms = False
    until(found, lambda w: w.pilot.state is State.ROLLING_BACK)
    found.pilot.on_fact(EngineDied(found.now_ns, -9, "", 1))
    found.pilot.on_fact(replace(found.engine, at_ns=found.now_ns))
    found.run(2)
    found.pilot.on_fact(LimitsSet(found.now_ns, 1, found.limits, (), "restart", ""))
    assert found.in_force["max_num_seqs"] == 16
    found.confirms = True
    found.run(30)

    assert found.in_force["max_num_seqs"] == 4
    assert len(found.told(Decision.ROLLED_BACK)) == 1


def test_an_operators_cap_of_the_automatic_budget_stays() -> None:
    """A fixed budget would take the cap away."""
    found = with_automatic_budget(by_budget(0.97))
    found.events[3] = lambda w: w.set_limits({"max_auto_tokens": 512})
    found.run(200)

    assert found.in_force["max_batched_tokens"] == "auto"
    assert found.in_force["max_auto_tokens"] == 512
    assert not found.puts
    assert (Decision.REFUSED, Reason.OPERATOR) in [(o.decision, o.reason) for o in found.decisions]


def test_the_cap_of_a_budget_that_an_operator_has_set_is_not_put_back() -> None:
    """A cap without the automatic budget that it belongs to is half a way back."""
    found = with_automatic_budget(by_budget(0.46))
    until(found, lambda w: w.told(Decision.APPLIED))
    found.set_limits({"max_batched_tokens": 256})
    found.run(100)

    assert found.in_force["max_batched_tokens"] == 256
    assert [one.values for one in found.puts] == [{"max_batched_tokens": 64}]
    assert found.told(Decision.STOPPED)


def test_both_names_of_the_token_budget_cool_down_together() -> None:
    memory = Memory()
    memory.changed(["max_auto_tokens"], SECOND)

    assert not memory.is_cool(["max_batched_tokens"], 2 * SECOND)
    assert memory.is_cool(["max_num_seqs"], 2 * SECOND)
