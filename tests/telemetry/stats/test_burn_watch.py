"""A class that burns its error budget fast requests one dump."""

from __future__ import annotations

import msgspec
import pytest

from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from telemetry.stats.slo import BurnWatch, SloFold
from tests.support.worlds.metrics_world import one_request

GOOD, SLOW = (10, 10), (10, 3000)


class Burning:
    """Requests of class chat, one every two seconds; `dumps` has the times of requested dumps."""

    def __init__(self, policy: SloPolicy = DEFAULT_POLICY) -> None:
        self.dumps: list[int] = []
        self.requests = 0
        slo = SloFold(policy, 0)
        watch = BurnWatch(slo, lambda: self.dumps.append(self.requests))
        self._fold = PhaseFold([slo.on_timeline, watch.on_timeline])

    def serve(self, gaps_ms: tuple[int, ...], count: int) -> None:
        for _ in range(count):
            number = self.requests = self.requests + 1
            facts = one_request(
                gaps_ms,
                request_id=f"r{number}",
                seq_id=number,
                start_ms=2000 * number,
                slo_class="chat",
            )
            self._fold.on_facts(facts)


def test_a_fast_burn_requests_one_dump() -> None:
    world = Burning()
    world.serve(SLOW, 40)

    assert world.dumps == [10]


def test_a_met_slo_and_a_short_burn_request_no_dump() -> None:
    """Six slow requests are many in their minute, but few in five."""
    world = Burning()
    world.serve(GOOD, 140)
    world.serve(SLOW, 6)
    world.serve(GOOD, 40)

    assert world.dumps == []


def test_too_few_requests_request_no_dump() -> None:
    world = Burning()
    world.serve(SLOW, 9)

    assert world.dumps == []


def test_after_a_minute_without_misses_the_next_burn_requests_another_dump() -> None:
    world = Burning()
    world.serve(SLOW, 20)
    world.serve(GOOD, 60)
    assert world.dumps == [10]
    world.serve(SLOW, 60)

    assert len(world.dumps) == 2


@pytest.mark.parametrize(("slow", "told"), [(5, True), (2, False)])
def test_a_class_that_may_miss_often_burns_fast_when_half_of_it_misses(
    slow: int, told: bool
) -> None:
    chat = msgspec.structs.replace(DEFAULT_POLICY.classes["chat"], objective=0.9)
    world = Burning(SloPolicy({"chat": chat}, "chat"))
    for _ in range(6):
        world.serve(SLOW, slow)
        world.serve(GOOD, 9 - slow)

    assert bool(world.dumps) is told
