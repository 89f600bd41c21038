"""Each invariant can fail: a scheduler broken on purpose is caught by the one it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.simulation.evidence import InvariantViolated
from lab.simulation.scenarios import build_scenario
from lab.simulation.world import World
from service.engine.admission import Limits
from service.engine.inbox import Submit
from service.engine.scheduler import Scheduler
from telemetry.facts.engine_records import StepRecorded
from tests.support.worlds.broken_schedulers import (
    BelievesPromptsCheap,
    BelievesPromptsDear,
    EndsTwice,
    EvictsWhatRuns,
    FillsStepsOfFirstTokens,
    Forgets,
    ForgetsBlocked,
    ForgetsSlack,
    IgnoresAdapters,
    IgnoresDeadlines,
    IgnoresTargets,
    KeepsOverdueWaiting,
    LastComeFirstServed,
    LeaksBlocks,
    LetsLateHoldUp,
    LetsLatePass,
    Miserly,
    NeverStops,
    Overspends,
    RefusesAtOnce,
    RefusesUnasked,
    RegistersTooEarly,
    ServesAllOverdueFirst,
    SharesBetweenAdapters,
    SharesWithEverybody,
    StopsEarly,
    SwapsTokens,
    Unbounded,
    Uncapped,
    WaitsForever,
)

pytestmark = pytest.mark.long

SEEDS = 400


def is_caught(number: int, make: Callable[[Limits], Scheduler]) -> bool:
    """Whether some chaotic world finds this invariant broken."""
    for seed in range(SEEDS):
        try:
            World(build_scenario("chaos", seed), make).run()
        except InvariantViolated as error:
            if error.number == number:
                return True
        except AssertionError:
            continue  # a check of the product was faster; another seed will do
    return False


@pytest.mark.parametrize(
    ("number", "broken"),
    [
        (21, IgnoresAdapters),
        (21, EvictsWhatRuns),
        (22, SharesBetweenAdapters),
        (1, Forgets),
        (2, EndsTwice),
        (3, LeaksBlocks),
        (4, RegistersTooEarly),
        (5, Overspends),
        (6, NeverStops),
        (8, LastComeFirstServed),
        (9, ForgetsBlocked),
        (10, SharesWithEverybody),
        (11, SwapsTokens),
        (12, IgnoresDeadlines),
        (13, Unbounded),
        (14, WaitsForever),
        (15, Uncapped),
        (16, StopsEarly),
        (17, BelievesPromptsCheap),
        (17, IgnoresTargets),
        (18, ForgetsSlack),
        (18, LetsLateHoldUp),
        (18, LastComeFirstServed),
        (18, KeepsOverdueWaiting),
        (18, LetsLatePass),
        (18, ServesAllOverdueFirst),
        (19, RefusesUnasked),
        (19, RefusesAtOnce),
        (20, Miserly),
        (20, BelievesPromptsDear),
    ],
)
def test_the_invariant_catches_the_scheduler_that_breaks_it(
    number: int, broken: type[Scheduler]
) -> None:
    assert is_caught(number, broken)


def test_a_first_token_that_a_looser_prompt_makes_late_is_caught() -> None:
    """INV-17, second half: in one world with latency classes of some hundreds, so it is named."""
    with pytest.raises(InvariantViolated, match="INV-17"):
        World(build_scenario("classes", 49), FillsStepsOfFirstTokens).run()


def test_stamps_out_of_order_are_caught() -> None:
    """INV-7 watches the loop, not the scheduler: a step that claims to end before the last."""
    world = World(build_scenario("poisson", 0))
    real = world.lane.append

    def tampered(fact: Any) -> None:
        import msgspec

        if isinstance(fact, StepRecorded) and fact.step_id == 3:
            fact = msgspec.structs.replace(fact, committed_ns=fact.begin_ns - 1)
        real(fact)

    world.lane.append = tampered  # type: ignore[method-assign]
    with pytest.raises(InvariantViolated, match="INV-7"):
        world.run()


def test_unfair_service_between_tenants_is_caught() -> None:
    """INV-8, second half: counters that no policy balances drift beyond the bound."""
    from service.engine import fairness

    class Blind(Scheduler):
        def __init__(self, limits: Limits) -> None:
            super().__init__(limits)
            self.table.queue._policy = fairness.Policy.FCFS

        def submit(self, command: Submit, now_ns: int) -> None:
            super().submit(command, now_ns)
            if command.tenant == "flood":
                self.table.counters.add_prefill("flood", 500)

    with pytest.raises(InvariantViolated, match="INV-8"):  # noqa: PT012
        for seed in range(50):
            World(build_scenario("tenants", seed), Blind).run()
