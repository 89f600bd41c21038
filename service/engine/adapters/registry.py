"""Which adapters are known, which of them are placed, and how much memory is left.

Memory is reserved before the weights are read, so that what has been read always fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MAX_KNOWN_ADAPTERS = 1024


class State(StrEnum):
    """Where the weights are."""

    ABSENT = "absent"  # on the disk only
    READING = "reading"  # a thread reads them
    PLACED = "placed"  # on the device


@dataclass(slots=True, eq=False)
class Adapter:
    """One known adapter.

    `bytes` is None until it has been read once; then it takes its name from adapter `replaces`, if
    there is one. `digest` is of what was read then, and does not change. `held_bytes` is what is
    reserved or taken of the memory. `used_order` grows with each use. A `closed` one takes no new
    sequences.
    """

    number: int
    name: str
    source: str
    replaces: int | None = None
    bytes: int | None = None
    digest: str = ""
    held_bytes: int = 0
    holds: bool = False
    state: State = State.ABSENT
    used_order: int = 0
    closed: bool = False


class AdapterRegistry:
    """The one owner of what is known and of the memory. At most `max_placed` hold memory at once,
    of `memory_bytes` together."""

    def __init__(self, memory_bytes: int, max_placed: int) -> None:
        self.memory_bytes = memory_bytes
        self.max_placed = max_placed
        self.known: dict[int, Adapter] = {}
        self._by_name: dict[str, int] = {}
        self._last_number = 0
        self._uses = 0

    @property
    def held_bytes(self) -> int:
        """Bytes taken or reserved."""
        return sum(one.held_bytes for one in self.known.values())

    @property
    def held(self) -> int:
        """Adapters that are placed or for which memory is reserved."""
        return sum(one.holds for one in self.known.values())

    def named(self, name: str) -> Adapter | None:
        """The adapter that new sequences get by that name."""
        number = self._by_name.get(name)
        return None if number is None else self.known[number]

    def add(self, name: str, source: str, number: int = 0) -> Adapter:
        """A new adapter, with the next number unless that is stated. It has its name if no other
        one has it."""
        number = number or self._last_number + 1
        assert number not in self.known, f"adapter {number} is known"
        self._last_number = max(number, self._last_number)
        adapter = Adapter(number, name, source, self._by_name.get(name))
        self.known[adapter.number] = adapter
        self._by_name.setdefault(name, adapter.number)
        return adapter

    def take_name(self, adapter: Adapter) -> Adapter | None:
        """New sequences get it by its name; returns the one that had the name until now."""
        old = self.named(adapter.name)
        self._by_name[adapter.name] = adapter.number
        return None if old is adapter else old

    def close(self, adapter: Adapter) -> None:
        """No new sequence may use it, and its name is free."""
        adapter.closed = True
        if self._by_name.get(adapter.name) == adapter.number:
            del self._by_name[adapter.name]

    def remove(self, adapter: Adapter) -> None:
        """It is not known any more."""
        self.close(adapter)
        del self.known[adapter.number]

    def used(self, numbers: Iterable[int]) -> None:
        """A step computes with these."""
        self._uses += 1
        for number in numbers:
            self.known[number].used_order = self._uses

    def fits(self, adapter: Adapter) -> bool:
        """Whether there is memory for it now."""
        needed = adapter.bytes or 0
        return self.held < self.max_placed and self.held_bytes + needed <= self.memory_bytes

    def reserve(self, adapter: Adapter) -> None:
        """Set memory aside for it."""
        assert not adapter.holds, f"adapter {adapter.number} has memory"
        assert self.fits(adapter), f"no memory for adapter {adapter.number}"
        adapter.holds, adapter.held_bytes = True, adapter.bytes or 0

    def release(self, adapter: Adapter) -> int:
        """It is on the disk only; returns the bytes that are free again."""
        freed, adapter.held_bytes = adapter.held_bytes, 0
        adapter.holds, adapter.state = False, State.ABSENT
        return freed

    def placed(self, adapter: Adapter, placed_bytes: int) -> None:
        """It is on the device, where it takes `placed_bytes`."""
        assert adapter.holds, f"adapter {adapter.number} was placed without memory for it"
        adapter.state, adapter.held_bytes = State.PLACED, placed_bytes

    def victims(self, adapter: Adapter, candidates: Iterable[Adapter]) -> list[Adapter] | None:
        """Which of the candidates have to go so that the adapter fits, the least recently used
        first; None if all of them are not enough."""
        needed = adapter.bytes or 0
        held, held_bytes, found = self.held, self.held_bytes, list[Adapter]()
        queue = sorted(candidates, key=lambda one: (one.used_order, one.number))
        while held >= self.max_placed or held_bytes + needed > self.memory_bytes:
            if not queue:
                return None
            found.append(queue.pop(0))
            held, held_bytes = held - 1, held_bytes - found[-1].held_bytes
        return found

    def check(self) -> None:
        """Raises AssertionError when the books are wrong."""
        for adapter in self.known.values():
            assert adapter.holds or adapter.state is not State.PLACED, f"{adapter} without memory"
            assert adapter.holds or not adapter.held_bytes, f"{adapter} holds what it has not"
        for name, number in self._by_name.items():
            assert self.known[number].name == name, f"{name!r} is not adapter {number}"
