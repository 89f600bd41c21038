"""Recorded choices, made again by the same core, and what another policy would have chosen.

The facts of one router, in the order in which they were recorded, are all that its choices depended
on. A choice that comes out otherwise is a bug, or a record with holes: `FactsLost` says so. One
before which something was sent that is not in the record cannot be made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_fact

from service.fleet.routing.request import request_of
from service.fleet.routing.router import FleetFact, Router
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import (
    EngineDrainBegan,
    EngineJoined,
    EngineLeft,
    EngineReported,
    RequestRouted,
    RouteChoiceEnded,
    RouteEnded,
    RouteRefused,
    RouterStarted,
    RoutingPolicy,
)


class NoRouter(Exception):
    """The facts do not begin with those of a router's start."""


@dataclass(slots=True)
class ReplayedDecisions:
    """`choices` were made again; `differing` are those that came out otherwise, as recorded and as
    made again. `picks` counts them by engine. `undecidable` others do not follow from the record:
    their engine had not joined in it, or what it was sent before is missing."""

    choices: int = 0
    undecidable: int = 0
    differing: list[tuple[RequestRouted, RequestRouted | RouteRefused]] = field(
        default_factory=list
    )
    picks: Counter[str] = field(default_factory=Counter)


def replay_decisions(
    facts: Iterable[object], policy: RoutingPolicy | None = None, most_differing: int = 1000
) -> ReplayedDecisions:
    """Make each recorded choice again, by the recorded policy or another one. What was sent,
    reported and ended before is as recorded, whatever `policy` would have done. Facts of others are
    passed over; at most `most_differing` differences are kept. Raises NoRouter."""
    found, replayed = ReplayedDecisions(), None
    for fact in facts:
        if isinstance(fact, RouterStarted):
            if replayed is None or replayed.started != fact:  # else it is said again
                replayed = _Replayed(fact, policy)
        elif isinstance(fact, FleetFact):
            if replayed is None:
                raise NoRouter("no RouterStarted comes before the first fact of routing")
            replayed.take(fact, found, most_differing)
    if replayed is None:
        raise NoRouter("no RouterStarted is among the facts: they are not of a fleet's gateway")
    return found


def with_older_signals(facts: Iterable[object], more_ns: int) -> list[object]:
    """The facts as if each report had come `more_ns` later, and was so much older: what a slower
    link, or a longer period between reports, would have left a router to know. For
    `replay_decisions`; what was sent and ended stays as recorded."""
    found: list[tuple[int, int, object]] = []
    last_ns = 0
    for number, fact in enumerate(facts):
        if isinstance(fact, EngineReported):
            later_ns = fact.at_ns + more_ns
            later = replace_fact(fact, at_ns=later_ns, age_ns=fact.age_ns + more_ns)
            found.append((later_ns, number, later))
            continue
        last_ns = max(last_ns, fact.at_ns) if isinstance(fact, FleetFact) else last_ns
        found.append((last_ns, number, fact))
    found.sort(key=lambda one: one[:2])
    return [fact for _, _, fact in found]


def _nowhere(fact: FleetFact) -> None:
    pass


class _Replayed:
    """The router of the record, and what it was told of each engine."""

    def __init__(self, started: RouterStarted, policy: RoutingPolicy | None) -> None:
        settings = RoutingSettings.of(started)
        if policy is not None:
            settings = replace(settings, policy=policy)
        self.started = started
        self._router = Router(settings, _nowhere, started.at_ns)
        self._joined: dict[str, EngineJoined] = {}
        self._sent: Counter[str] = Counter()
        self._open: set[str] = set()

    def take(self, fact: FleetFact, found: ReplayedDecisions, most_differing: int) -> None:
        router = self._router
        match fact:
            case EngineJoined():
                self._join(fact)
            case EngineDrainBegan():
                router.drain(fact.engine, fact.at_ns)
            case EngineLeft():
                self._open.difference_update(router.left(fact.engine, fact.reason, fact.at_ns))
                self._joined.pop(fact.engine, None)
            case EngineReported():
                router.report(fact)
            case RouteChoiceEnded():
                router.choice_ended(fact.request_id, fact.at_ns)
            case RouteEnded():
                router.ended(fact.request_id, fact.output_tokens, fact.at_ns)
                self._open.discard(fact.request_id)
            case RequestRouted():
                if self._follows(fact):
                    self._choose(fact, found, most_differing)
                else:
                    found.undecidable += 1
                    if fact.excluded is not None:  # the next one may say "the same"
                        router.last_excluded = fact.excluded
            case RouteRefused() | RouterStarted():
                pass

    def _join(self, fact: EngineJoined) -> None:
        if self._joined.get(fact.engine) == fact:
            return  # it is said again
        lost = self._router.joined(fact.engine, fact.incarnation, fact.block_tokens, fact.at_ns)
        self._open.difference_update(lost)
        self._joined[fact.engine], self._sent[fact.engine] = fact, 0

    def _follows(self, fact: RequestRouted) -> bool:
        """Whether it is the next to that engine, and of a request that is at none."""
        joined = self._joined.get(fact.engine)
        if joined is None or joined.incarnation != fact.incarnation:
            return False
        return fact.ordinal == self._sent[fact.engine] + 1 and fact.request_id not in self._open

    def _choose(self, fact: RequestRouted, found: ReplayedDecisions, most_differing: int) -> None:
        again = self._router.choose(request_of(fact), fact.at_ns)
        found.choices += 1
        if isinstance(again, RequestRouted):
            found.picks[again.engine] += 1
        if again != fact and len(found.differing) < most_differing:
            found.differing.append((fact, again))
        self._router.sent(fact)
        self._sent[fact.engine] += 1
        self._open.add(fact.request_id)
