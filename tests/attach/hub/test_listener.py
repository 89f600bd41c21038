"""What the sidecar makes of connections: who they are, and how much they have lost."""

from __future__ import annotations

import pytest

from service.attach.sidecar.hub import Hub
from service.attach.sidecar.listener import AHEAD_NS, Connections, Refused
from service.attach.sidecar.streams import Counts, Refusal
from service.attach.sidecar.watch import Watch
from service.attach.wire import NAME_CHARACTERS, Batch, Role, sent_name
from telemetry.facts.clock import ManualClock
from telemetry.facts.recorder import Lane
from tests.attach.scripted_engine import hello


def connections() -> Connections:
    counts = Counts()
    hub = Hub(Lane(), counts, lambda: False)
    return Connections(hub, Watch(hub), counts, ManualClock())


def test_messages_that_waited_for_the_connection_are_no_new_losses() -> None:
    """The first message of a connection tells what is lost by now; those that waited tell what was
    lost when they were written."""
    found = connections()
    stream = found.greet(hello(), 1000)
    for lost_facts in (500, 100, 300, 510):
        found.take(stream, Batch([], lost_facts=lost_facts))
    assert found.lost_facts == 10

    found.gone(stream)
    stream = found.greet(hello(), 1000)
    for lost_facts in (510, 505, 512):
        found.take(stream, Batch([], lost_facts=lost_facts))
    assert found.lost_facts == 12


def test_a_process_that_has_the_number_of_another_one_loses_its_own_facts() -> None:
    found = connections()
    for pid, counts in ((1000, (7, 9)), (1001, (0, 3))):
        stream = found.greet(hello(), pid)
        for lost_facts in counts:
            found.take(stream, Batch([], lost_facts=lost_facts))
        found.gone(stream)
    assert found.lost_facts == 2 + 3


def test_a_process_whose_clock_is_ahead_is_refused_and_why_is_said() -> None:
    """It is in another time namespace: its facts would wait here until their time had come."""
    found = connections()
    found.greet(hello(at_ns=AHEAD_NS), 1000)
    with pytest.raises(
        Refused, match=r"process 7\) is 1\.5 s ahead .* one time namespace"
    ) as refused:
        found.greet(hello(Role.FRONT_END, pid=7, at_ns=3 * AHEAD_NS // 2), 1001)
    assert refused.value.why is Refusal.CLOCK
    assert not found.has_front_end


def test_cores_of_two_containers_may_have_the_same_number() -> None:
    """They are two engines."""
    found = connections()
    found.greet(hello(pid=7), 1000)
    with pytest.raises(Refused) as refused:
        found.greet(hello(pid=7), 1001)
    assert refused.value.why is Refusal.SECOND_CORE
    assert found.greet(hello(pid=7), 1000).pid == 1000, "the same process may connect again"


@pytest.mark.parametrize("name", ["cmpl-1", "x" * NAME_CHARACTERS, "x" * 10_000, "a\nb", "\ud800"])
def test_a_name_travels_as_a_short_line(name: str) -> None:
    found = sent_name(name)
    assert found.encode()
    assert found.isprintable()
    assert len(found) <= NAME_CHARACTERS
    assert (found == name) == (len(name) <= NAME_CHARACTERS and name.isprintable())


def test_long_names_that_differ_at_the_end_stay_apart() -> None:
    """Engines put what makes a name unique there."""
    names = [f"{'x' * 500}-{number}" for number in range(100)]
    assert len({sent_name(name) for name in names}) == len(names)
