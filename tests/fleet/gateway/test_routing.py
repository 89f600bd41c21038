"""What a gateway tells its router of the engines that it may not choose."""

from __future__ import annotations

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.membership.members import MOST_MEMBERS, Member, Role
from service.fleet.routing.decided_again import decide_again
from service.fleet.routing.router import FleetFact
from service.fleet.wire.messages import EngineIs
from service.fleet.wire.open_requests import MOST_OPEN
from service.gateway.fleet.client import FleetClient
from service.gateway.fleet.link import EngineLink, LinkState
from service.gateway.fleet.routing import Routing
from telemetry.facts.clock import ManualClock
from telemetry.facts.fleet.routing_records import (
    RequestRouted,
    RouteChoiceEnded,
    RouteEnded,
    RoutingPolicy,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Lane
from tests.fleet.fleet_world import DIGEST, KEY, Members
from tests.fleet.test_wire import STARTED


class Connected(EngineLink):
    """An engine that is there."""

    @property
    def state(self) -> LinkState:
        return LinkState.DRAINING if self.member.draining else LinkState.READY


class Fleet:
    """So many engines, and the requests that went somewhere."""

    def __init__(self, engines: int) -> None:
        self.facts: list[FleetFact] = []
        self.routing = Routing(RoutingPolicy.LEAST_FINISH, KEY, self.facts.append, 0)
        clock, lane = ManualClock(), Lane(source=FactSource.GATEWAY)
        owner = FleetClient(Members(), lane, clock, "m", DIGEST)
        self.links: dict[str, EngineLink] = {}
        for number in range(engines):
            name = f"n{number}"
            link = self.links[name] = Connected(Member(name=name, host="h", port=1), owner)
            link.engine = EngineIs(incarnation=1, started=STARTED, ready=True)
            self.routing.changed(link, 0)

    def change(self, names: list[str], **how: object) -> None:
        """The membership says something else of engines."""
        for name in names:
            old = self.links[name].member
            fields = {"name": name, "host": old.host, "port": old.port} | how
            self.links[name].member = Member(**fields)  # type: ignore[arg-type]

    def send(self, request_id: str, sequences: int = 1) -> str:
        """The engine that it goes to."""
        submit = Submit(seq_id=1, prompt=[1, 2], max_tokens=3, sampling=SamplingParams())
        routed = self.routing.choose(submit, request_id, 2, self.links, 0, sequences)
        assert routed is not None
        self.routing.begin(routed)
        return routed.engine


def test_no_request_goes_to_an_engine_that_drains_however_many_do() -> None:
    fleet = Fleet(MOST_MEMBERS)
    names = list(fleet.links)
    fleet.change(names[:600], draining=True)

    assert not {fleet.send(f"r{number}") for number in range(40)} & set(names[:600])


def test_engines_that_compute_prompts_for_others_are_left_alone_while_there_are_others() -> None:
    fleet = Fleet(5)
    fleet.change(["n0", "n1", "n2"], role=Role.PREFILL)

    assert {fleet.send(f"r{number}") for number in range(8)} == {"n3", "n4"}
    fleet.change(["n3", "n4"], draining=True)
    assert {fleet.send(f"p{number}") for number in range(9)} == {"n0", "n1", "n2"}


def test_facts_name_engines_that_may_not_be_chosen_when_these_change() -> None:
    fleet = Fleet(4)
    for number in range(9):
        fleet.change(["n1"], draining=number in (3, 4, 5))
        fleet.change(["n2"], draining=number in (5, 6, 7))
        fleet.send(f"r{number}")

    named = [one.excluded for one in fleet.facts if isinstance(one, RequestRouted)]
    assert named == [(), (), (), ("n1",), None, ("n1", "n2"), ("n2",), None, ()]
    assert not decide_again(fleet.facts).differing


def test_of_more_requests_than_are_counted_none_is_outstanding_when_all_have_ended() -> None:
    """Both ends of the wire count the oldest as ended, and so does the router."""
    fleet = Fleet(1)
    names = [f"r{number}" for number in range(MOST_OPEN + 4)]
    for name in names:
        fleet.send(name)
        fleet.routing.sent("n0", name, 1)
    assert fleet.routing.outstanding("n0") == MOST_OPEN
    for name in names:
        fleet.routing.over("n0", name, 3, False, 0)

    assert fleet.routing.outstanding("n0") == 0
    ended = [fact.request_id for fact in fleet.facts if isinstance(fact, RouteEnded)]
    assert ended == names


def test_a_choice_that_has_ended_is_not_counted_until_its_request_has() -> None:
    """An engine with one choice left of four has less to do than one with two requests."""
    fleet = Fleet(2)
    first = fleet.send("r0", sequences=4)
    for _ in range(4):
        fleet.routing.sent(first, "r0", 4)
    other = fleet.send("r1", sequences=2)
    for _ in range(2):
        fleet.routing.sent(other, "r1", 2)
    assert other != first
    for _ in range(3):
        fleet.routing.over(first, "r0", 5, False, 7)

    assert fleet.send("r2") == first
    fleet.routing.over(first, "r0", 5, False, 9)
    told = [one for one in fleet.facts if isinstance(one, RouteChoiceEnded | RouteEnded)]
    assert told == [RouteChoiceEnded(7, "r0")] * 3 + [RouteEnded(9, "r0", 20)]
    assert not decide_again(fleet.facts).differing
