"""Recorded choices, made again by the same core, and what another policy would have chosen.

The facts of one router, in the order in which they were recorded, are all that its choices depended
on. A choice that comes out otherwise is a bug, or a record with holes: `FactsLost` says so.
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
    RouteEnded,
    RouteRefused,
    RouterStarted,
    RoutingPolicy,
)


class NoRouter(Exception):
    """The facts do not begin with those of a router's start."""


@dataclass(slots=True)
class DecidedAgain:
    """`choices` were made again; `differing` are those that came out otherwise, as recorded and as
    made again. `picks` counts them by engine."""

    choices: int = 0
    differing: list[tuple[RequestRouted, RequestRouted | RouteRefused]] = field(
        default_factory=list
    )
    picks: Counter[str] = field(default_factory=Counter)


def decide_again(
    facts: Iterable[object], policy: RoutingPolicy | None = None, most_differing: int = 1000
) -> DecidedAgain:
    """Make each recorded choice again, by the recorded policy or another one. What was sent,
    reported and ended before is as recorded, whatever `policy` would have done. Facts of others are
    passed over; at most `most_differing` differences are kept. Raises NoRouter."""
    found, router = DecidedAgain(), None
    for fact in facts:
        if isinstance(fact, RouterStarted):
            settings = RoutingSettings.of(fact)
            if policy is not None:
                settings = replace(settings, policy=policy)
            router = Router(settings, _nowhere, fact.at_ns)
        elif isinstance(fact, FleetFact):
            if router is None:
                raise NoRouter("no RouterStarted comes before the first fact of routing")
            _apply(router, fact, found, most_differing)
    if router is None:
        raise NoRouter("no RouterStarted is among the facts: they are not of a fleet's gateway")
    return found


def with_older_signals(facts: Iterable[object], more_ns: int) -> list[object]:
    """The facts as if each report had come `more_ns` later, and was so much older: what a slower
    link, or a longer period between reports, would have left a router to know. For `decide_again`;
    what was sent and ended stays as recorded."""
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


def _apply(router: Router, fact: FleetFact, found: DecidedAgain, most: int) -> None:
    match fact:
        case EngineJoined():
            router.joined(fact.engine, fact.incarnation, fact.block_tokens, fact.at_ns)
        case EngineDrainBegan():
            router.drain(fact.engine, fact.at_ns)
        case EngineLeft():
            router.left(fact.engine, fact.reason, fact.at_ns)
        case EngineReported():
            router.report(fact)
        case RouteEnded():
            router.ended(fact.request_id, fact.output_tokens, fact.at_ns)
        case RequestRouted():
            again = router.choose(request_of(fact), fact.at_ns)
            found.choices += 1
            if isinstance(again, RequestRouted):
                found.picks[again.engine] += 1
            if again != fact and len(found.differing) < most:
                found.differing.append((fact, again))
            router.sent(fact)
        case RouteRefused() | RouterStarted():
            pass
