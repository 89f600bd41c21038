"""An adapter whose files change while the engine runs."""

from __future__ import annotations

import pytest

from service.engine.inbox import Inbox, LoadAdapter, WeightsRead
from telemetry.facts.adapter_records import AdapterEvicted, AdapterFailed
from telemetry.facts.engine_records import SequenceAdmitted
from telemetry.facts.reasons import EndReason
from tests.support.worlds.engine_world import World

PROMPT = list(range(14))


class Folders:
    """Implements `AdapterDevice`: what is read of a folder is the text that is its contents."""

    def __init__(self) -> None:
        self.contents = {"k": "first", "l": "other"}
        self.waiting: set[int] = set()
        self.inbox = Inbox()

    def read(self, number: int, source: str) -> None:
        self.waiting.add(number)
        self.inbox.put(
            WeightsRead(number=number, bytes=100, rank=1, read_ns=0, digest=self.contents[source])
        )

    def place(self, number: int) -> int:
        self.waiting.remove(number)
        return 100

    def drop(self, number: int) -> None: ...

    def forget(self, number: int) -> None:
        self.waiting.remove(number)


def serving(folders: Folders) -> World:
    """Adapters k and l, of which one is placed at a time; k has answered, and was evicted."""
    world = World(adapters=folders, adapter_bytes=100, max_adapters=1)
    folders.inbox = world.inbox
    for name in ("k", "l"):
        load(world, name)
    ask(world, adapter=1)
    ask(world, adapter=2)
    assert [f.number for f in world.facts if isinstance(f, AdapterEvicted)] == [1]
    return world


def load(world: World, name: str, replace: bool = False) -> None:
    world.inbox.put(LoadAdapter(ticket=1, name=name, source=name, replace=replace))
    for _ in range(3):
        world.step()


def ask(world: World, adapter: int) -> int:
    seq_id = world.submit(1, max_tokens=2, given=PROMPT, adapter=adapter)
    for _ in range(20):
        world.step()
    return seq_id


def hits(world: World) -> list[int]:
    return [fact.hit_tokens for fact in world.facts if isinstance(fact, SequenceAdmitted)]


def test_an_adapter_that_is_read_again_finds_what_it_has_computed() -> None:
    world = serving(Folders())
    seq_id = ask(world, adapter=1)

    assert world.ends[seq_id] == [EndReason.MAX_TOKENS]
    assert hits(world) == [0, 0, 12]


def test_an_adapter_that_is_read_again_with_other_weights_hits_nothing_of_the_old_ones() -> None:
    """It fails, and says what to do; loaded anew it begins with an empty cache."""
    folders = Folders()
    world = serving(folders)
    folders.contents["k"] = "second"
    seq_id = ask(world, adapter=1)

    assert world.ends[seq_id] == [EndReason.ADAPTER_FAILED]
    assert "files have changed" in (world.details[seq_id] or "")
    assert "replace" in (world.details[seq_id] or "")
    assert not folders.waiting, "what was read is not kept"

    load(world, "k", replace=True)
    seq_id = ask(world, adapter=3)
    assert world.ends[seq_id] == [EndReason.MAX_TOKENS]
    assert hits(world) == [0, 0, 0]


@pytest.mark.parametrize("times", [1, 3])
def test_an_adapter_with_changed_files_can_be_used_again_when_they_are_put_back(
    times: int,
) -> None:
    folders = Folders()
    world = serving(folders)
    folders.contents["k"] = "second"
    for _ in range(times):
        assert world.ends[ask(world, adapter=1)] == [EndReason.ADAPTER_FAILED]
    folders.contents["k"] = "first"

    assert world.ends[ask(world, adapter=1)] == [EndReason.MAX_TOKENS]
    assert hits(world) == [0, 0, 12]
    assert sum(isinstance(fact, AdapterFailed) for fact in world.facts) == times
