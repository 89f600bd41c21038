"""Adapters are read beside the steps, and a read that never ends fails."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from queue import Queue

import pytest

from service.config.settings import ConfigError
from service.engine.executor import Adapter, CountedAdapters
from service.engine.inbox import Inbox, WeightsRead
from service.process.adapter_store import MOST_HUNG, AdapterStore
from telemetry.facts.clock import MonotonicClock

GENEROUS_S = 60.0


class Weights:
    bytes, rank, digest = 10, 4, "d1"


class Disk:
    """Reads at once, raises, or hangs until it is let go: everything, or what is in `stuck`."""

    def __init__(self) -> None:
        self.executor = CountedAdapters()
        self.goes_on = threading.Event()
        self.hangs = False
        self.stuck: frozenset[str] = frozenset()
        self.begun: Queue[str] = Queue()

    def read_adapter(self, folder: Path) -> Adapter:
        self.begun.put(folder.name)
        if self.hangs or folder.name in self.stuck:
            self.goes_on.wait(GENEROUS_S)
        if folder.name == "broken":
            raise ConfigError(f"{folder} has no tensors; save the adapter again")
        return Weights()


def store_of(disk: Disk, timeout_s: float = GENEROUS_S) -> tuple[AdapterStore, Queue[WeightsRead]]:
    answers: Queue[WeightsRead] = Queue()
    return AdapterStore(disk, MonotonicClock(), answers.put, timeout_s), answers


def test_what_was_read_is_placed_and_freed() -> None:
    store, answers = store_of(Disk())
    store.load_at_start((), Inbox(), lambda: None)
    store.read(1, "folder")

    answer = answers.get(timeout=GENEROUS_S)
    assert (answer.number, answer.bytes, answer.rank, answer.error) == (1, 10, 4, None)
    assert answer.digest == "d1"
    assert store.place(1) == 10
    store.drop(1)
    store.close()


def test_a_broken_adapter_is_an_answer_with_its_reason() -> None:
    store, answers = store_of(Disk())
    store.load_at_start((), Inbox(), lambda: None)
    store.read(1, "broken")

    assert "no tensors" in (answers.get(timeout=GENEROUS_S).error or "")
    store.close()


def test_at_the_start_a_broken_adapter_ends_the_start() -> None:
    store, _ = store_of(Disk())

    with pytest.raises(ConfigError, match="no tensors"):
        store.read(1, "broken")


def test_a_read_that_hangs_fails_in_time_and_what_comes_of_it_is_dropped() -> None:
    disk = Disk()
    disk.hangs = True
    store, answers = store_of(disk, timeout_s=0.01)
    store.load_at_start((), Inbox(), lambda: None)
    store.read(1, "folder")

    assert answers.get(timeout=GENEROUS_S).error == "not read within 0.01 s"
    disk.goes_on.set()
    store.read(2, "broken")  # the thread goes on with the next one
    assert answers.get(timeout=GENEROUS_S).number == 2
    store.close()


def test_a_read_that_hangs_holds_up_no_other() -> None:
    """Each has its time from its own begin, and one that has it not keeps the thread."""
    disk = Disk()
    disk.stuck = frozenset({"stuck"})
    store, answers = store_of(disk, timeout_s=0.3)
    store.load_at_start((), Inbox(), lambda: None)
    for number, folder in enumerate(["stuck", "stuck", "folder"]):
        store.read(number, folder)

    told = [answers.get(timeout=GENEROUS_S) for _ in range(3)]
    late = "not read within 0.3 s"
    assert [(one.number, one.error) for one in told] == [(0, late), (1, late), (2, None)]
    disk.goes_on.set()
    store.close()


def test_while_several_reads_hang_further_ones_fail_at_once() -> None:
    """Each may bring a whole adapter one day, so they are few; one that comes back makes room."""
    disk = Disk()
    disk.stuck = frozenset({"stuck"})
    store, answers = store_of(disk, timeout_s=0.05)
    store.load_at_start((), Inbox(), lambda: None)
    for number in range(MOST_HUNG + 2):
        store.read(number, "stuck")

    said = Counter(answers.get(timeout=GENEROUS_S).error for _ in range(MOST_HUNG + 2))
    assert said == {
        "not read within 0.05 s": MOST_HUNG,
        f"{MOST_HUNG} reads of adapters hang; see to their file system": 2,
    }
    assert [disk.begun.get(timeout=GENEROUS_S) for _ in range(MOST_HUNG)] == ["stuck"] * MOST_HUNG
    assert disk.begun.empty()
    disk.goes_on.set()
    error: str | None = "not yet"
    while error is not None:
        store.read(9, "folder")
        error = answers.get(timeout=GENEROUS_S).error
    store.close()
