"""Which adapters are known and placed, and which of them sequences run with or wait for."""

from __future__ import annotations

import msgspec

from telemetry.facts.adapter_records import (
    AdapterAdded,
    AdapterClosed,
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
)
from telemetry.facts.engine_records import (
    EngineStarted,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.records import EngineDied, Fact


class AdapterStats(msgspec.Struct, frozen=True):
    """The adapters at one moment; `names` are those that clients may ask for, `running` those of
    the batch and `waiting` those of queued sequences. An engine without memory for adapters has
    `max_placed` 0."""

    names: tuple[str, ...] = ()
    placed: int = 0
    placed_bytes: int = 0
    memory_bytes: int = 0
    max_placed: int = 0
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class AdapterFold:
    """Follows sequences that have an adapter; of the others it keeps nothing."""

    def __init__(self) -> None:
        self._memory_bytes = self._max_placed = 0
        self._names: dict[int, str] = {}
        self._closed: set[int] = set()
        self._placed: dict[int, int] = {}
        self._number_of: dict[int, int] = {}
        self._running: set[int] = set()

    def take(self, fact: Fact) -> None:
        match fact:
            case StepRecorded() if fact.preempted:
                self._running.difference_update(fact.preempted)
            case SequenceQueued() if fact.adapter:
                self._number_of[fact.seq_id] = fact.adapter
            case SequenceAdmitted() if fact.seq_id in self._number_of:
                self._running.add(fact.seq_id)
            case SequenceEnded():
                self._end(fact.seq_id)
            case SequencesListed():
                for seq_id in fact.over(list(self._number_of)):
                    self._end(seq_id)
            case AdapterAdded():
                self._names[fact.number] = fact.name
            case AdapterLoaded():
                self._placed[fact.number] = fact.bytes
            case AdapterEvicted():
                self._placed.pop(fact.number, None)
            case AdapterClosed():
                self._closed.add(fact.number)
            case AdapterUnloaded():
                self._placed.pop(fact.number, None)
                self._names.pop(fact.number, None)
                self._closed.discard(fact.number)
            case EngineStarted() | EngineDied():
                self._clear()
                if isinstance(fact, EngineStarted):
                    self._memory_bytes, self._max_placed = fact.adapter_bytes, fact.max_adapters
            case _:
                pass

    def stats(self) -> AdapterStats:
        running = {n for seq_id, n in self._number_of.items() if seq_id in self._running}
        waiting = {n for seq_id, n in self._number_of.items() if seq_id not in self._running}
        return AdapterStats(
            names=tuple(name for n, name in self._names.items() if n not in self._closed),
            placed=len(self._placed),
            placed_bytes=sum(self._placed.values()),
            memory_bytes=self._memory_bytes,
            max_placed=self._max_placed,
            running=self._named(running),
            waiting=self._named(waiting),
        )

    @property
    def live(self) -> int:
        """Sequences with an adapter that have not ended."""
        return len(self._number_of)

    def _named(self, numbers: set[int]) -> tuple[str, ...]:
        return tuple(sorted({self._names[n] for n in numbers if n in self._names}))

    def _end(self, seq_id: int) -> None:
        self._number_of.pop(seq_id, None)
        self._running.discard(seq_id)

    def _clear(self) -> None:
        self._memory_bytes = self._max_placed = 0
        for kept in (self._names, self._placed, self._number_of):
            kept.clear()
        self._closed.clear()
        self._running.clear()
