"""Adapters are read beside the steps, and a read that never ends fails."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import Queue

import pytest

from service.config.settings import ConfigError
from service.engine.executor import Adapter, CountedAdapters
from service.engine.inbox import Inbox, WeightsRead
from service.process.adapter_store import AdapterStore
from telemetry.facts.clock import MonotonicClock

GENEROUS_S = 60.0


class Weights:
    bytes, rank = 10, 4


class Disk:
    """Reads at once, raises, or hangs until it is let go."""

    def __init__(self) -> None:
        self.executor = CountedAdapters()
        self.goes_on = threading.Event()
        self.hangs = False

    def read_adapter(self, folder: Path) -> Adapter:
        if self.hangs:
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
