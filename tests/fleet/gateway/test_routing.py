"""What a gateway tells its router of the engines that it may not choose."""

from __future__ import annotations

from msgspec.structs import replace

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.membership.members import MOST_MEMBERS, Member, Role
from service.fleet.routing.decision_replay import replay_decisions
from service.fleet.routing.router import FleetFact
from service.fleet.wire.messages import EngineIs
from service.fleet.wire.open_requests import MOST_OPEN
from service.gateway.engine_client.output_queue import OutputQueue, ignore
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.fleet.client import FleetClient
from service.gateway.fleet.link import EngineLink, LinkState
from service.gateway.fleet.routing import Routing
from service.gateway.fleet.starts import Starts
from telemetry.facts.clock import ManualClock
from telemetry.facts.fleet.routing_records import (
    RequestRouted,
    RouteChoiceEnded,
    RouteEnded,
    RoutingPolicy,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Lane
from tests.fleet.fleet_world import DIGEST, KEY, SPAN_ID, TRACE_ID, Members
from tests.fleet.test_wire import STARTED


class Connected(EngineLink):
    """An engine that is there."""

    reads = 0
    """Of the state of any."""

    @property
    def state(self) -> LinkState:
        return self.state_at(0)

    def state_at(self, now_ns: int) -> LinkState:
        Connected.reads += 1
        return LinkState.DRAINING if self.member.draining else LinkState.READY


class Fleet:
    """So many engines, and the requests that went somewhere."""

    def __init__(self, engines: int, kind: type[Connected] = Connected) -> None:
        self.facts: list[FleetFact] = []
        self.routing = Routing(RoutingPolicy.LEAST_FINISH, KEY, self.facts.append, 0)
        clock, lane = ManualClock(), Lane(source=FactSource.GATEWAY)
        owner = FleetClient(Members(), lane, clock, "m", DIGEST)
        self.links: dict[str, EngineLink] = {}
        for number in range(engines):
            name = f"n{number}"
            link = self.links[name] = kind(Member(name=name, host="h", port=1), owner)
            link.engine = EngineIs(incarnation=1, started=STARTED, ready=True)
            self.routing.changed(link, 0)

    def change(self, names: list[str], **how: object) -> None:
        """The membership says something else of engines."""
        for name in names:
            old = self.links[name].member
            fields = {"name": name, "host": old.host, "port": old.port} | how
            self.links[name].member = Member(**fields)  # type: ignore[arg-type]
            self.routing.changed(self.links[name], 0)

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


class Quiet(Connected):
    """It is not heard any more, of which no event tells."""

    is_silent = False

    def state_at(self, now_ns: int) -> LinkState:
        return LinkState.NOT_READY if self.is_silent else super().state_at(now_ns)


def test_an_engine_that_fell_silent_since_it_was_ready_is_not_chosen_nor_is_it_forgotten() -> None:
    fleet = Fleet(3, Quiet)
    one, two, three = fleet.links.values()
    assert isinstance(one, Quiet)
    assert isinstance(two, Quiet)
    one.is_silent = two.is_silent = True
    assert {fleet.send(f"r{number}") for number in range(6)} == {three.name}

    fleet.change([three.name], draining=True)
    one.is_silent = False
    assert fleet.send("s") == one.name


def _submitted(engines: int) -> int:
    """How often states are read for a request among so many engines."""
    client = FleetClient(Members(), Lane(source=FactSource.GATEWAY), ManualClock(), "m", DIGEST)
    for number in range(engines):
        link = Connected(Member(name=f"n{number}", host="h", port=1), client)
        link.engine = EngineIs(incarnation=1, started=STARTED, ready=True)
        client._links[link.name] = link
        client.changed(link)
    submit = Submit(seq_id=1, prompt=[1, 2], max_tokens=3, sampling=SamplingParams())
    about = RequestContext("r", TRACE_ID, SPAN_ID, None, "", "/v1/completions", "", 0, 1)
    before = Connected.reads
    assert client.ready
    client.submit(submit, OutputQueue(10, ignore), about)
    return Connected.reads - before


def test_a_request_looks_at_as_few_engines_of_many_as_of_some() -> None:
    assert 0 < _submitted(10) == _submitted(200)


def test_what_every_engine_can_do_follows_those_that_start_and_leave() -> None:
    starts = Starts()
    small = replace(STARTED, max_model_tokens=100)
    assert starts.take("n0", STARTED) == replace(STARTED, pid=0)
    assert starts.take("n1", small) == replace(small, pid=0)
    assert starts.take("n1", small) is None
    assert starts.take("n1", None) == replace(STARTED, pid=0)
    assert starts.take("n0", None) is None
    assert not starts


def test_facts_name_engines_that_may_not_be_chosen_when_these_change() -> None:
    fleet = Fleet(4)
    for number in range(9):
        fleet.change(["n1"], draining=number in (3, 4, 5))
        fleet.change(["n2"], draining=number in (5, 6, 7))
        fleet.send(f"r{number}")

    named = [one.excluded for one in fleet.facts if isinstance(one, RequestRouted)]
    assert named == [(), (), (), ("n1",), None, ("n1", "n2"), ("n2",), None, ()]
    assert not replay_decisions(fleet.facts).differing


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
    assert not replay_decisions(fleet.facts).differing
