"""Adapters in virtual time: what their files hold, how long they take, the device that has them.

Where a real device would compute with freed weights, this one stops: a plan may name placed
adapters only, and none is freed that a launched step computes with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from lab.simulation.evidence import require
from service.engine.executor import DeviceFailure
from service.engine.inbox import Command, LoadAdapter, UnloadAdapter, WeightsRead
from telemetry.facts.adapter_records import (
    AdapterAdded,
    AdapterClosed,
    AdapterRead,
    AdapterUnloaded,
    UnloadMode,
)
from telemetry.facts.clock import ManualClock
from telemetry.facts.records import Fact

_MS = 1_000_000
_RANK = 8
PLACED = 21  # the invariant that is checked here


@dataclass(frozen=True, slots=True, kw_only=True)
class SimAdapter:
    """An adapter's folder. It is read in `read_ns`, or cannot be; the device may not take it."""

    name: str
    bytes: int = 100
    read_ns: int = 30 * _MS
    place_ns: int = 2 * _MS
    is_readable: bool = True
    is_placeable: bool = True

    @property
    def load(self) -> LoadAdapter:
        """The command by which it becomes known."""
        return LoadAdapter(ticket=0, name=self.name, source=self.name)


class SimAdapters:
    """Implements `service.engine.adapters.orders.AdapterDevice` in virtual time. `send_at` delivers
    a command at a time."""

    def __init__(
        self,
        clock: ManualClock,
        adapters: Mapping[str, SimAdapter],
        send_at: Callable[[int, Command], None],
    ) -> None:
        self._clock = clock
        self._adapters = adapters
        self._send_at = send_at
        self._source_of: dict[int, SimAdapter] = {}
        self._read: set[int] = set()
        self._placed: set[int] = set()
        self._in_flight: deque[frozenset[int]] = deque()

    def read(self, number: int, source: str) -> None:
        found = self._source_of[number] = self._adapters[source]
        self._read.add(number)
        error = None if found.is_readable else "no such folder"
        answer = WeightsRead(
            number=number, bytes=found.bytes, rank=_RANK, read_ns=found.read_ns, error=error
        )
        self._send_at(self._clock.now_ns() + found.read_ns, answer)

    def place(self, number: int) -> int:
        found = self._source_of[number]
        self._read.remove(number)
        self._clock.advance(found.place_ns)
        if not found.is_placeable:
            raise DeviceFailure("no memory")
        self._placed.add(number)
        return found.bytes

    def drop(self, number: int) -> None:
        self._placed.remove(number)
        flying = any(number in used for used in self._in_flight)
        require(PLACED, not flying, f"adapter {number} was freed below a launched step")

    def forget(self, number: int) -> None:
        self._read.remove(number)

    def launched(self, step_id: int, used: frozenset[int]) -> None:
        """A step that computes with these adapters is launched."""
        missing = used - self._placed
        require(PLACED, not missing, f"step {step_id} computes with {sorted(missing)}, not placed")
        self._in_flight.append(used)

    def collected(self) -> None:
        self._in_flight.popleft()


class KnownAdapters:
    """Names and numbers as a gateway knows them: from facts."""

    def __init__(self) -> None:
        self._number_of: dict[str, int] = {}
        self._replacing: dict[int, str] = {}

    def number_of(self, name: str) -> int | None:
        """0 for no adapter; None for one that is not served."""
        return self._number_of.get(name) if name else 0

    def take(self, fact: Fact) -> None:
        match fact:
            case AdapterAdded() if fact.replaces is None:
                self._number_of[fact.name] = fact.number
            case AdapterAdded():
                self._replacing[fact.number] = fact.name
            case AdapterRead() if fact.number in self._replacing:
                self._number_of[self._replacing.pop(fact.number)] = fact.number
            case AdapterClosed() | AdapterUnloaded():
                for name in [n for n, number in self._number_of.items() if number == fact.number]:
                    del self._number_of[name]
            case _:
                pass


def any_adapters(random: Random) -> tuple[SimAdapter, ...]:
    """A few adapters of different sizes; some cannot be used."""
    return tuple(
        SimAdapter(
            name=name,
            bytes=random.choice((50, 100, 100, 300)),
            read_ns=random.randrange(1, 200 * _MS),
            place_ns=random.randrange(1, 20 * _MS),
            is_readable=random.random() < 0.9,
            is_placeable=random.random() < 0.9,
        )
        for name in "klmnop"[: random.randint(1, 6)]
    )


def any_unloads(
    random: Random, adapters: tuple[SimAdapter, ...], horizon_ns: int
) -> list[tuple[int, Command]]:
    """Adapters come and go while the engine runs, under names that may be taken or free."""
    found: list[tuple[int, Command]] = []
    for _ in range(random.choice((0, 1, 4))):
        chosen, at_ns = random.choice(adapters), random.randrange(horizon_ns)
        mode = random.choice(tuple(UnloadMode))
        found.append((at_ns, UnloadAdapter(ticket=1, name=chosen.name, mode=mode)))
        again = LoadAdapter(ticket=2, name=chosen.name, source=chosen.name, replace=bool(at_ns % 2))
        found.append((at_ns + random.randrange(horizon_ns), again))
    return found
