"""The way of facts out of an engine's process, over real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.attach.inside.outbox import Outbox
from service.attach.inside.transport import Bounds, Listing, Sender, report_not_observed
from service.attach.inside.versions import UnknownEngine
from service.attach.wire import Batch, Role, SequenceName, Submitted, TurnedOff
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    SequencePaused,
    SequencesListed,
)
from tests.attach.sidecar import Connection, Sidecar

FAST = Bounds(turn_ms=2, heartbeat_ms=5, first_retry_ms=2, last_retry_ms=4)
STARTED = EngineStarted(1, 2, "m", "cpu", "f32", 9, 16, 64, 4, 32, True, 2, 0, 0)


def paused(number: int) -> SequencePaused:
    return SequencePaused(number, 0, 0)


def until_taken(sender: Sender) -> None:
    """The thread has looked at everything that was written."""
    while sender.queued:
        os.sched_yield()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attach.sock"


@pytest.fixture
def sidecar(path: Path) -> Iterator[Sidecar]:
    found = Sidecar(path)
    yield found
    found.close()


@pytest.fixture
def sender(path: Path) -> Iterator[Sender]:
    found = Sender(Role.ENGINE_CORE, "vllm", "0.1", 3, path=path, bounds=FAST)
    yield found
    found.close()


def test_says_who_it_is_then_sends_in_order(sidecar: Sidecar, sender: Sender) -> None:
    """Hello comes first, and facts, names and submissions arrive as they were written."""
    sender.started(STARTED)
    sender.name(7, "cmpl-7")
    sender.submit(Submitted("r", 1, "cmpl-7", 0))
    for number in range(1000):
        sender.append(paused(number))
    engine = sidecar.accept()
    engine.read_until(lambda one: len(one.facts) >= 1001)

    assert (engine.hello.role, engine.hello.engine, engine.hello.index) == (
        "engine_core",
        "vllm",
        3,
    )
    assert engine.hello.pid == os.getpid()
    assert engine.facts == [STARTED, *map(paused, range(1000))]
    assert [name for batch in engine.batches for name in batch.names] == [SequenceName(7, "cmpl-7")]
    assert [one.name for batch in engine.batches for one in batch.submitted] == ["cmpl-7"]
    assert engine.lost_facts == 0


def test_an_idle_process_shows_that_it_runs(sidecar: Sidecar, sender: Sender) -> None:
    """Empty batches come on, with the stamp of the loop's last turn."""
    sender.turn_ns = 42
    sender.append(paused(1))
    engine = sidecar.accept()
    engine.read_until(lambda one: sum(not batch.facts for batch in one.batches[1:]) >= 3)

    assert {batch.turn_ns for batch in engine.batches} == {42}


def test_a_loop_that_rests_has_no_last_turn(path: Path, sidecar: Sidecar) -> None:
    """It is asked when a message is made, as nothing tells the moment at which it came to rest."""
    is_resting = [False]
    sender = Sender(
        Role.ENGINE_CORE, "vllm", "0.1", path=path, is_resting=lambda: is_resting[0], bounds=FAST
    )
    sender.turn_ns = 42
    sender.append(paused(1))
    engine = sidecar.accept()
    engine.read_until(lambda one: any(not batch.facts for batch in one.batches[1:]))
    assert {batch.turn_ns for batch in engine.batches} == {42}

    is_resting[0] = True
    engine.read_until(lambda one: one.batches[-1].turn_ns is None)
    is_resting[0] = False
    engine.read_until(lambda one: one.batches[-1].turn_ns == 42)
    sender.close()


def test_a_frozen_sidecar_costs_the_oldest_facts_and_their_number_is_told(
    path: Path, sidecar: Sidecar
) -> None:
    """Nothing waits for a reader that reads nothing, and what waits is bounded in bytes."""
    bounds = Bounds(turn_ms=1, waiting_bytes=20_000, queued_items=10**6, batch_items=16)
    sender = Sender(Role.ENGINE_CORE, "vllm", "0.1", path=path, bounds=bounds)
    sender.append(paused(0))
    engine = sidecar.accept()
    total = 200_000  # more bytes than a socket holds
    for number in range(1, total):
        sender.append(paused(number))
    until_taken(sender)
    sender.append(EngineIdled(0, 0, 0, 0, 0, 0))
    engine.read_until(lambda one: any(isinstance(fact, EngineIdled) for fact in one.facts))
    sender.close()

    numbers = [fact.seq_id for fact in engine.facts if isinstance(fact, SequencePaused)]
    assert engine.lost_facts > 0
    assert len(numbers) + engine.lost_facts == total
    assert numbers == sorted(numbers)
    assert numbers[-1] == total - 1


def test_a_sidecar_that_does_not_read_gets_one_list_and_not_one_a_turn(
    path: Path, sidecar: Sidecar
) -> None:
    """A list that waits behind what is lost would be lost too, and is long."""
    bounds = Bounds(turn_ms=1, waiting_bytes=20_000, queued_items=10**6, batch_items=16)
    asked: list[int] = []

    def listing() -> Listing:
        asked.append(sender.lost_facts)
        return SequencesListed(5, (), 9), []

    sender = Sender(
        Role.ENGINE_CORE, "vllm", "0.1", path=path, listing=listing, bounds=bounds
    )  # fmt: skip
    sender.append(paused(0))
    engine = sidecar.accept()
    engine.read_until(lambda one: any(isinstance(fact, SequencesListed) for fact in one.facts))
    while not sender.lost_facts:
        sender.append(paused(1))
        until_taken(sender)
    before = len(asked)
    for _ in range(50):
        for _ in range(1_000):
            sender.append(paused(2))
        until_taken(sender)
    assert asked[before:] == []

    sender.append(EngineIdled(0, 0, 0, 0, 0, 0))
    lists = (SequencesListed,)
    engine.read_until(lambda one: sum(isinstance(fact, lists) for fact in one.facts) == 2)
    sender.close()
    engine.read_to_end()
    assert sum(isinstance(fact, lists) for fact in engine.facts) == 2
    assert asked[-1] == engine.lost_facts


def test_a_full_queue_refuses_and_counts(path: Path) -> None:
    """Where the thread cannot keep up, the engine's thread still never waits."""
    bounds = Bounds(turn_ms=10_000, queued_items=10)
    sender = Sender(Role.ENGINE_CORE, "vllm", "0.1", path=path, bounds=bounds)
    sender.append(paused(0))
    until_taken(sender)
    for number in range(25):
        sender.append(paused(number))
    assert (sender.queued, sender.lost_facts) == (10, 15)
    sender.close()


def test_a_new_sidecar_hears_first_what_it_must_know(path: Path, sidecar: Sidecar) -> None:
    """Hello, the engine's start, the live names, what was turned off, and then the list of them."""

    def listing() -> Listing:
        return SequencesListed(5, (7,), 9), [SequenceName(7, "cmpl-7")]

    sender = Sender(Role.ENGINE_CORE, "vllm", "0.1", path=path, listing=listing, bounds=FAST)
    sender.started(STARTED)
    sender.turn_off("add_request", "KeyError")
    first = sidecar.accept()
    first.read_until(lambda one: any(isinstance(fact, SequencesListed) for fact in one.facts))
    first.close()
    sidecar.close()
    again = Sidecar(path)
    second = again.accept()
    second.read_until(lambda one: any(isinstance(fact, SequencesListed) for fact in one.facts))
    sender.close()
    again.close()

    assert second.hello.pid == os.getpid()
    assert second.batches[0].facts == [STARTED]
    assert second.batches[1].names == [SequenceName(7, "cmpl-7")]
    off = second.messages[3]
    assert isinstance(off, TurnedOff)
    assert (off.hook, off.reason, off.is_all) == ("add_request", "KeyError", False)
    assert second.facts.count(STARTED) == first.facts.count(STARTED) == 1


def test_a_sidecar_hears_of_the_engine_however_many_sequences_live(path: Path) -> None:
    """Names of clients may be long: all of them together are no message any more."""
    names = [SequenceName(number, f"{number:0256}") for number in range(40_000)]
    sender = Sender(
        Role.ENGINE_CORE, "vllm", "0.1", path=path, bounds=FAST,
        listing=lambda: (SequencesListed(5, (7,), 9), names),
    )  # fmt: skip
    sender.started(STARTED)
    until_taken(sender)
    sidecar = Sidecar(path)
    engine = sidecar.accept()
    engine.read_until(lambda one: any(isinstance(fact, SequencesListed) for fact in one.facts))
    sender.close()
    sidecar.close()

    assert engine.facts[0] == STARTED
    assert {name.seq_id for batch in engine.batches for name in batch.names} == set(range(40_000))


def test_a_greeting_that_is_no_message_is_counted() -> None:
    """One whose values cannot be encoded."""
    outbox = Outbox(most_bytes=1_000)
    outbox.greet([Batch([paused(2**80)], [SequenceName(1, "a")])])

    assert outbox.is_empty
    assert outbox.lost_facts == 2


def test_facts_of_the_time_without_a_sidecar_are_sent_when_it_comes(
    path: Path, sender: Sender
) -> None:
    """An engine that starts before its sidecar loses nothing."""
    sender.started(STARTED)
    sender.append(paused(1))
    until_taken(sender)
    sidecar = Sidecar(path)
    engine = sidecar.accept()
    engine.read_until(lambda one: len(one.facts) >= 2)
    sidecar.close()

    assert engine.facts == [STARTED, paused(1)]


def test_a_message_that_was_sent_in_part_is_sent_again_in_full(
    path: Path, sidecar: Sidecar
) -> None:
    """A sidecar that dies in the middle of a message costs no message its place."""
    bounds = Bounds(turn_ms=1, first_retry_ms=1, last_retry_ms=1, queued_items=10**6)
    sender = Sender(Role.ENGINE_CORE, "vllm", "0.1", path=path, bounds=bounds)
    sender.append(paused(0))
    first = sidecar.accept()
    for number in range(1, 100_000):
        sender.append(paused(number))
    until_taken(sender)
    first.close()  # with unread bytes
    second = sidecar.accept()
    second.read_until(lambda one: bool(one.facts) and one.facts[-1] == paused(99_999))
    sender.close()

    numbers = [fact.seq_id for fact in second.facts if isinstance(fact, SequencePaused)]
    assert numbers == list(range(numbers[0], 100_000))


def test_nothing_follows_when_all_is_turned_off(sidecar: Sidecar, sender: Sender) -> None:
    """The reason arrives; later facts are not taken, and are no losses."""
    sender.append(paused(1))
    sender.turn_off("plugin", "vLLM 9 is not known", is_all=True)
    sender.append(paused(2))
    engine = sidecar.accept()
    engine.read_until(lambda one: any(isinstance(seen, TurnedOff) for seen in one.messages))
    sender.close()
    engine.read_to_end()

    assert engine.facts == [paused(1)]
    assert engine.lost_facts == 0


def test_what_cannot_be_encoded_costs_no_other_fact(sidecar: Sidecar, sender: Sender) -> None:
    """A wrong value in one fact is a lost fact."""
    sender.append(paused(1))
    sender.append(SequencePaused(2**80, 0, 0))
    sender.append(SequencePaused(object(), 0, 0))  # type: ignore[arg-type]
    sender.append(paused(2))
    engine = sidecar.accept()
    engine.read_until(lambda one: len(one.facts) >= 2 and one.lost_facts == 2)

    assert engine.facts == [paused(1), paused(2)]


def test_a_process_that_forks_shares_no_connection(
    path: Path, sidecar: Sidecar, sender: Sender
) -> None:
    """The child has a connection of its own with its own facts; the parent's goes on."""
    sender.started(STARTED)
    parent = sidecar.accept()
    parent.read_until(lambda one: len(one.facts) >= 1)
    pid = os.fork()
    if pid == 0:
        sender.append(paused(100))
        sender.close(10.0)
        os._exit(0)
    child = sidecar.accept()
    child.read_to_end()
    assert os.waitpid(pid, 0)[1] == 0
    sender.append(paused(1))
    parent.read_until(lambda one: len(one.facts) >= 2)

    assert (child.hello.pid, child.facts) == (pid, [paused(100)])
    assert (parent.hello.pid, parent.facts) == (os.getpid(), [STARTED, paused(1)])


@pytest.mark.parametrize(
    ("error", "reason"),
    [(UnknownEngine("vllm 9 is not known"), "vllm 9 is not known"), (KeyError("p"), "KeyError")],
)
def test_why_a_process_is_not_observed_is_said(
    path: Path, sidecar: Sidecar, error: Exception, reason: str
) -> None:
    """The text of an error that is not ours may have values of requests."""
    report_not_observed(
        Role.FRONT_END, "vllm", "0.1", path=path, hook="register", error=error, index=2
    )
    engine = sidecar.accept()
    engine.read_until(lambda one: any(isinstance(seen, TurnedOff) for seen in one.messages))

    off = engine.messages[-1]
    assert isinstance(off, TurnedOff)
    assert (off.hook, off.reason, off.is_all) == ("register", reason, True)
    assert (engine.hello.role, engine.hello.index) == ("front_end", 2)


def test_without_a_sidecar_nothing_is_raised(path: Path, sender: Sender) -> None:
    """A socket that is no socket is as good as none."""
    path.write_text("no socket")
    for number in range(100):
        sender.append(paused(number))
    sender.close()


def test_connections_are_closed_at_the_end(sidecar: Sidecar, sender: Sender) -> None:
    """What waits is sent before the thread ends."""
    sender.append(paused(1))
    sender.close()
    engine: Connection = sidecar.accept()
    engine.read_to_end()

    assert engine.facts == [paused(1)]
