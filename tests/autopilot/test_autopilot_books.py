"""What the autopilot counts: shares that do not depend on how young requests are, the load at any
rate, and nothing of requests whose facts are lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from diagnosis.autopilot.books import Books, Tally
from diagnosis.autopilot.trial import is_other_load
from telemetry.facts.engine_records import RecordingSet
from telemetry.facts.limits import LimitValue
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.reasons import AutopilotReason as Reason
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import Fact, FactsLost
from telemetry.requests.slo_policy import DEFAULT_POLICY
from tests.autopilot.test_autopilot import world
from tests.support.worlds.piloted import SECOND, Shares, admitted, arrival


def books() -> Books:
    return Books(DEFAULT_POLICY)


def arrive(found: Books, number: int, at_ns: int, *, is_admitted: bool = True) -> None:
    facts = arrival(f"r{number}", number, "chat", at_ns)
    for fact in [*facts, admitted(number, at_ns)] if is_admitted else facts:
        found.on_fact(fact)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_change_without_effect_is_no_success_and_no_harm_where_answers_are_long(
    seed: int,
) -> None:
    """A fifth of the requests miss at once, before and after; the good ones end after 40 s."""

    def hopes(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        return {"chat": 0.97 if limits["max_num_seqs"] == 16 else 0.8, "batch": 0.8}

    found = world(
        lambda limits, rate: {"chat": 0.8, "batch": 0.8},
        forecast=hopes,
        seed=seed,
        rate=lambda at_s: 8.0,
        verdict=lambda at_s, shares: "fault" if at_s > 70 else "indeterminate",
        takes_s=lambda is_good: 40.0 if is_good else 0.1,
    ).run(300)

    assert found.told(Decision.APPLIED)
    assert Reason.WORSE not in {one.reason for one in found.decisions}
    assert not found.told(Decision.KEPT)
    assert found.told(Decision.PROPOSED)[0].before["chat"] == pytest.approx(0.8, abs=0.12)


def test_shares_are_of_those_that_are_old_enough_to_be_judged() -> None:
    """One request a second: each fifth misses after 1 s, the others end after 40 s."""
    found = books()
    for number in range(100):
        arrive(found, number, number * SECOND)
    for number in range(100):
        is_good = number % 5 != 0
        if number + (40 if is_good else 1) <= 100:
            found.ended(f"r{number}", is_good)

    assert found.tallies(0, 100 * SECOND)["chat"] == Tally(48, 68)
    assert found.known(0, 100 * SECOND)["chat"] == Tally(48, 61)
    assert found.known(70 * SECOND, 100 * SECOND)["chat"] == Tally(0, 1)


def test_a_few_streams_that_go_on_do_not_hide_what_came_after_them() -> None:
    found = books()
    for number in range(100):
        arrive(found, number, number * SECOND)
        if number not in (10, 60):
            found.ended(f"r{number}", True)

    assert found.known(0, 100 * SECOND)["chat"] == Tally(98, 98)


@pytest.mark.parametrize(
    "fact",
    [
        FactsLost(2 * SECOND, FactSource.ENGINE, 5),
        FactsLost(2 * SECOND, FactSource.GATEWAY, 5),
        RecordingSet(2 * SECOND, True),
    ],
    ids=["engine", "gateway", "recording"],
)
def test_requests_that_were_live_when_facts_were_lost_count_neither_way(fact: Fact) -> None:
    """Their admission may be among what was lost, and so may that of those that came between the
    first lost fact and now."""
    found = books()
    for number in range(20):
        arrive(found, number, SECOND, is_admitted=False)
    found.on_fact(fact)
    arrive(found, 20, 2 * SECOND, is_admitted=False)
    found.tick(3 * SECOND)
    for number in range(10):
        found.ended(f"r{number}", True)
    arrive(found, 21, 3 * SECOND)
    found.ended("r21", True)
    found.tick(9 * SECOND)

    assert found.tallies(0, 9 * SECOND) == {"chat": Tally(1, 1)}


def test_what_the_machine_has_lost_is_no_loss_of_requests() -> None:
    found = books()
    arrive(found, 1, SECOND, is_admitted=False)
    found.on_fact(FactsLost(SECOND, FactSource.OTHER, 5))
    found.tick(3 * SECOND)

    assert found.tallies(0, 3 * SECOND) == {"chat": Tally(0, 1)}


@pytest.mark.parametrize("rate", [20, 700])
def test_a_steady_load_is_the_same_load_at_any_rate(rate: int) -> None:
    """Of 700 requests a second less than half a minute is kept."""
    found, second = books(), SECOND // rate
    for number in range(rate * 60):
        arrive(found, number, number * second, is_admitted=False)
        found.ended(f"r{number}", True)
    before = found.load(0, 60 * SECOND)
    for number in range(rate * 60, rate * 75):
        arrive(found, number, number * second, is_admitted=False)
        found.ended(f"r{number}", True)
    now = found.load(60 * SECOND, 75 * SECOND)

    assert before.requests_per_s == pytest.approx(rate, rel=0.01)
    assert not is_other_load(before, now)
