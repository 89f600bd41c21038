"""The facts of the adapters that an engine knows now, for whoever comes later."""

from __future__ import annotations

from telemetry.facts.adapter_records import (
    AdapterAdded,
    AdapterEvicted,
    AdapterFact,
    AdapterLoaded,
    AdapterRead,
    AdapterUnloaded,
)


class KnownAdapters:
    """The facts of each known adapter: its AdapterAdded, its last AdapterRead, and while it is
    placed its AdapterLoaded."""

    def __init__(self) -> None:
        self._facts: dict[int, dict[type, AdapterFact]] = {}

    def take(self, fact: AdapterFact) -> None:
        match fact:
            case AdapterAdded():
                self._facts[fact.number] = {AdapterAdded: fact}
            case AdapterRead() | AdapterLoaded():
                if fact.number in self._facts:
                    self._facts[fact.number][type(fact)] = fact
            case AdapterEvicted():
                self._facts.get(fact.number, {}).pop(AdapterLoaded, None)
            case AdapterUnloaded():
                self._facts.pop(fact.number, None)
            case _:
                pass

    def clear(self) -> None:
        """The engine has ended."""
        self._facts.clear()

    def facts(self) -> list[AdapterFact]:
        """In the order in which the adapters became known."""
        return [fact for known in self._facts.values() for fact in known.values()]
