"""Engines that a request must not go to: as many as a membership has, named once in the facts."""

from __future__ import annotations

import msgspec
import pytest

from service.fleet.membership.members import MOST_MEMBERS
from service.fleet.routing.decision_replay import replay_decisions
from service.fleet.routing.router import FleetFact
from service.fleet.routing.settings import MAX_EXCLUDED
from telemetry.facts.fleet.routing_records import RequestRouted, RoutingPolicy
from tests.fleet.routing.walks import Fleet


def routed(fleet: Fleet) -> list[RequestRouted]:
    return [one for one in fleet.facts if isinstance(one, RequestRouted)]


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_all_members_but_one_may_be_excluded(policy: RoutingPolicy) -> None:
    fleet = Fleet(MOST_MEMBERS, policy)
    excluded = tuple(f"e{number}" for number in range(MOST_MEMBERS - 1))

    assert fleet.send(fleet.request(excluded=excluded)) == f"e{MOST_MEMBERS - 1}"
    assert len(excluded) <= MAX_EXCLUDED


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_a_request_may_exclude_what_the_one_before_it_excluded(policy: RoutingPolicy) -> None:
    fleet = Fleet(4, policy)
    names = ("e0", "e1", "e3")
    sent = [fleet.send(fleet.request(excluded=which)) for which in (names, None, None)]

    assert sent == ["e2"] * 3
    assert [one.excluded for one in routed(fleet)] == [names, None, None]
    fleet.send(fleet.request())
    picks = {fleet.send(fleet.request(excluded=None)) for _ in range(8)}
    assert picks & set(names)


@pytest.mark.parametrize("policy", list(RoutingPolicy))
def test_choices_with_exclusions_come_out_the_same_again(policy: RoutingPolicy) -> None:
    """Also those of an earlier release, which named them each time."""
    fleet = Fleet(5, policy)
    for which in (("e0",), None, ("e0",), ("e0",), None, (), None, ("e1", "e4"), None):
        fleet.send(fleet.request(excluded=which))
    facts = msgspec.msgpack.decode(msgspec.msgpack.encode(fleet.facts), type=list[FleetFact])

    again = replay_decisions(facts)
    assert again.choices == 9
    assert not again.differing
