"""The facts of a fleet that its gateway knows now, for whoever comes later."""

from __future__ import annotations

from telemetry.facts.fleet.routing_records import (
    EngineDrainBegan,
    EngineJoined,
    EngineLeft,
    RouterStarted,
)

KnownFleetFact = RouterStarted | EngineJoined | EngineDrainBegan | EngineLeft


class KnownFleet:
    """The router's start, and of each engine that is there its EngineJoined and, if it drains, its
    EngineDrainBegan."""

    def __init__(self) -> None:
        self._router: RouterStarted | None = None
        self._engines: dict[str, list[KnownFleetFact]] = {}

    def take(self, fact: KnownFleetFact) -> None:
        match fact:
            case RouterStarted():
                self._router = fact
                self._engines.clear()
            case EngineJoined():
                self._engines[fact.engine] = [fact]
            case EngineDrainBegan():
                known = self._engines.get(fact.engine, [])
                if len(known) == 1:
                    known.append(fact)
            case EngineLeft():
                self._engines.pop(fact.engine, None)

    def facts(self) -> list[KnownFleetFact]:
        """In the order in which the router took them; none without a router."""
        if self._router is None:
            return []
        return [self._router, *(fact for known in self._engines.values() for fact in known)]
