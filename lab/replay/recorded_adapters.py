"""Adapters in a replay: the commands that the record shows, and devices that do what it says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from service.engine.executor import DeviceFailure
from service.engine.inbox import Command, LoadAdapter, UnloadAdapter, WeightsRead
from telemetry.facts.adapter_records import (
    AdapterAdded,
    AdapterClosed,
    AdapterEvicted,
    AdapterFailed,
    AdapterLoaded,
    AdapterRead,
    AdapterStage,
    AdapterUnloaded,
)
from telemetry.facts.clock import ManualClock
from telemetry.facts.records import Fact

ADAPTER_DECISIONS = (
    AdapterAdded,
    AdapterRead,
    AdapterLoaded,
    AdapterEvicted,
    AdapterClosed,
    AdapterUnloaded,
    AdapterFailed,
)


def adapter_command(fact: Fact) -> Command | None:
    """The command that caused a fact about adapters; None where none did."""
    match fact:
        case AdapterAdded():
            return LoadAdapter(
                ticket=fact.ticket,
                name=fact.name,
                source=fact.source,
                replace=fact.replaces is not None,
                number=fact.number,
            )
        case AdapterRead():
            return WeightsRead(
                number=fact.number, bytes=fact.bytes, rank=fact.rank, read_ns=fact.read_ns
            )
        case AdapterFailed() if fact.stage is AdapterStage.READ:
            return WeightsRead(
                number=fact.number, bytes=0, rank=0, read_ns=fact.read_ns, error=fact.detail
            )
        case AdapterClosed() if fact.replaced_by is None:
            return UnloadAdapter(ticket=fact.ticket, name=fact.name, mode=fact.mode)
        case _:
            return None


@dataclass(slots=True)
class RecordedAdapter:
    """What the record has of one adapter. `reads` are its answers, `placed` the bytes and
    nanoseconds of each time that it was placed, or why it could not be."""

    added: AdapterAdded
    reads: list[WeightsRead] = field(default_factory=list)
    placed: list[tuple[int, int] | str] = field(default_factory=list)
    unloaded_ns: int | None = None


def recorded_adapters(facts: Iterable[Fact]) -> dict[int, RecordedAdapter]:
    """The adapters of the record, by number."""
    found: dict[int, RecordedAdapter] = {}
    for fact in facts:
        if isinstance(fact, AdapterAdded):
            found[fact.number] = RecordedAdapter(fact)
        elif isinstance(fact, ADAPTER_DECISIONS) and fact.number in found:
            _note(found[fact.number], fact)
    return found


def _note(known: RecordedAdapter, fact: Fact) -> None:
    answer = adapter_command(fact)
    if isinstance(answer, WeightsRead):
        known.reads.append(answer)
    match fact:
        case AdapterLoaded():
            known.placed.append((fact.bytes, fact.place_ns))
        case AdapterFailed() if fact.stage is AdapterStage.PLACE:
            known.placed.append(fact.detail)
        case AdapterUnloaded():
            known.unloaded_ns = fact.at_ns
        case _:
            pass


class ExactAdapters:
    """An `AdapterDevice` that answers as recorded; what was read comes as a command."""

    def __init__(self, adapters: dict[int, RecordedAdapter]) -> None:
        self._placed = {number: deque(one.placed) for number, one in adapters.items()}

    def read(self, number: int, source: str) -> None: ...

    def place(self, number: int) -> int:
        """Raises DeviceFailure where the device had no place, or the record has no answer."""
        answers = self._placed.get(number)
        answer = answers.popleft() if answers else "not in the record"
        if isinstance(answer, str):
            raise DeviceFailure(answer)
        return answer[0]

    def drop(self, number: int) -> None: ...

    def forget(self, number: int) -> None: ...


class ModelledAdapters:
    """An `AdapterDevice` in virtual time: reading and placing take what they took last. `send_at`
    delivers a command at a time."""

    def __init__(self, adapters: dict[int, RecordedAdapter], clock: ManualClock) -> None:
        self._adapters = adapters
        self._clock = clock
        self.send_at: Callable[[int, Command], None] = lambda at_ns, command: None

    def read(self, number: int, source: str) -> None:
        known = self._adapters.get(number)
        if known is None or not known.reads:
            error = "not in the record"
            answer = WeightsRead(number=number, bytes=0, rank=0, read_ns=0, error=error)
        else:
            answer = known.reads[-1]
        self.send_at(self._clock.now_ns() + answer.read_ns, answer)

    def place(self, number: int) -> int:
        known = self._adapters[number]
        answer = known.placed[-1] if known.placed else (known.reads[-1].bytes, 0)
        if isinstance(answer, str):
            raise DeviceFailure(answer)
        self._clock.advance(answer[1])
        return answer[0]

    def drop(self, number: int) -> None: ...

    def forget(self, number: int) -> None: ...


def adapters_at(adapters: dict[int, RecordedAdapter], at_ns: int) -> list[Command]:
    """The commands by which an engine knows the adapters that were known just before then."""
    commands = [
        adapter_command(one.added)
        for one in adapters.values()
        if one.added.at_ns < at_ns and (one.unloaded_ns is None or one.unloaded_ns >= at_ns)
    ]
    return [command for command in commands if command is not None]
