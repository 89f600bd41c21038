"""Every live request has an id of its own, whatever clients and engines call it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from service.attach.inside.front_end.front import REQUEST_ID
from service.attach.sidecar.core_requests import CoreRequests
from service.attach.sidecar.streams import Stream
from service.attach.wire import Batch, Role, SequenceName, Submitted
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestsListed,
    SequenceSubmitted,
)
from tests.attach.hub.hub_world import WINDOW, World, sent
from tests.attach.scripted_engine import hello
from tests.support.worlds.facts import (
    MS,
    accepted,
    parsed,
    queued,
    request_ended,
    sequence_ended,
    tokenized,
)
from tests.support.worlds.ledger_world import run_fold


class TwoFronts(World):
    """Two API servers before one core; a proxy sends a request to both."""

    def __init__(self) -> None:
        super().__init__()
        self.other = Stream(hello(Role.FRONT_END, 2001, 1), None, 0, 0)

    def of_other(self, *facts: Fact, submitted: Sequence[Submitted] = ()) -> None:
        self.hub.take(self.other, Batch(list(facts), [], list(submitted)), 0)


def ids_of(facts: Sequence[Fact]) -> list[str]:
    return [fact.request_id for fact in facts if isinstance(fact, RequestAccepted)]


def begun(at: int) -> tuple[Fact, ...]:
    return accepted("r1", at), parsed("r1", at + 1), tokenized("r1", at + 2)


def test_the_end_of_a_request_does_not_end_that_of_another_front_end() -> None:
    """The first times out, and the proxy has tried again."""
    world = TwoFronts()
    world.of_front(*begun(5), request_ended("r1", 20, reason=EndReason.DISCONNECT))
    world.of_other(*begun(10), request_ended("r1", 40))
    first, second = run_fold(world.at(WINDOW + 40))[0]

    assert (first.accepted.request_id, first.ended.reason) == ("r1", EndReason.DISCONNECT)
    assert second.accepted.request_id != "r1"
    assert REQUEST_ID.fullmatch(second.accepted.request_id)
    assert (second.e2e_ns, second.ended.reason) == (30 * MS, EndReason.MAX_TOKENS)
    assert second.tokenized is not None
    assert not world.hub.is_busy


def test_whose_message_comes_first_does_not_matter() -> None:
    """Facts are in the order of their stamps; the later request is the one that is renamed."""
    world = TwoFronts()
    world.of_other(*begun(10), request_ended("r1", 40))
    world.of_front(*begun(5), request_ended("r1", 20))
    first, second = run_fold(world.at(WINDOW + 40))[0]

    assert (first.accepted.request_id, first.e2e_ns) == ("r1", 15 * MS)
    assert (second.accepted.at_ns, second.e2e_ns) == (10 * MS, 30 * MS)


def test_each_of_two_requests_with_one_id_gets_its_own_sequence() -> None:
    world = TwoFronts()
    world.of_front(*begun(5), submitted=[sent("r1", 8, "a")])
    world.of_other(*begun(6), submitted=[sent("r1", 9, "b")])
    world.of_core(queued(1, 20), queued(2, 21), names=[SequenceName(1, "a"), SequenceName(2, "b")])
    found = world.at(WINDOW + 21)
    owners = {fact.seq_id: fact.request_id for fact in found if isinstance(fact, SequenceSubmitted)}

    assert [owners[1], owners[2]] == ids_of(found)
    assert owners[1] != owners[2]


def test_an_id_is_free_again_when_its_request_has_ended() -> None:
    """A retry keeps the id under which its client looks for it."""
    world = TwoFronts()
    world.of_front(*begun(5), request_ended("r1", 9))
    world.of_other(*begun(10), request_ended("r1", 40))

    assert ids_of(world.at(WINDOW + 40)) == ["r1", "r1"]


def test_a_front_end_lists_its_requests_by_the_ids_that_they_have_here() -> None:
    world = TwoFronts()
    world.of_front(*begun(5))
    world.of_other(*begun(6), RequestsListed(20 * MS, ("r1",)))
    world.of_front(RequestsListed(30 * MS, ()))
    found = world.at(WINDOW + 30)
    first, second = (fact for fact in found if isinstance(fact, RequestsListed))

    assert set(first.request_ids) == set(ids_of(found))
    assert list(second.request_ids) == ids_of(found)[1:]


def test_an_end_without_a_begin_ends_no_request_of_another_front_end() -> None:
    """It began before this sidecar did."""
    world = TwoFronts()
    world.of_front(*begun(5))
    world.of_other(request_ended("r1", 9))

    assert not [fact for fact in world.at(WINDOW + 9) if isinstance(fact, RequestEnded)]
    assert world.hub.is_busy


def test_a_renamed_request_whose_end_was_lost_is_followed_by_one_with_its_id() -> None:
    """As with any request: the fold ends the first when the second begins."""
    world = TwoFronts()
    world.of_front(*begun(5))
    world.of_other(*begun(6))
    world.of_other(*begun(16), request_ended("r1", 40))
    ids = ids_of(world.at(WINDOW + 40))

    assert ids[0] == "r1"
    assert ids[1] == ids[2] != "r1"


# --- requests of the core alone ---------------------------------------------------------------


def begun_in_core(requests: CoreRequests, seq_id: int, name: str | None) -> str:
    """The id of the request of a sequence that the core has queued."""
    first = requests.begin(queued(seq_id), name, "m")[0]
    assert isinstance(first, RequestAccepted)
    return first.request_id


def test_two_names_that_differ_behind_their_beginning_are_two_requests() -> None:
    """A client that sends a long id sends it again with its next request."""
    requests = CoreRequests()
    first, second = (begun_in_core(requests, number, f"{'x' * 200}-{number}") for number in (1, 2))
    (ended,) = requests.end(sequence_ended(1))

    assert first != second
    assert isinstance(ended, RequestEnded)
    assert ended.request_id == first
    assert list(requests.live.values()) == [second]


@pytest.mark.parametrize("name", [None, "", "cmpl a/b", "x" * 128, "x" * 129, "é" * 256])
def test_every_name_gives_a_good_request_id(name: str | None) -> None:
    assert REQUEST_ID.fullmatch(begun_in_core(CoreRequests(), 7, name))


def test_a_name_that_is_short_enough_is_the_id() -> None:
    assert begun_in_core(CoreRequests(), 1, "cmpl-abc-0-1f2e3d4c") == "cmpl-abc-0-1f2e3d4c"
    assert begun_in_core(CoreRequests(), 7, None) == "sequence-7"
