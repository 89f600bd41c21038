"""Engines that report what a test says, and random walks of a router through its calls."""

from __future__ import annotations

from random import Random
from typing import Any

from service.fleet.routing.reports import ReportStatus
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.router import FleetFact, Router
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.engine_records import StepCostSet
from telemetry.facts.fleet.routing_records import (
    EngineReported,
    LeaveReason,
    PrefixChanges,
    RequestRouted,
    RoutingPolicy,
)

MS = 1_000_000
COST = StepCostSet(0, 0, 20 * MS, 100_000, 300_000, 500)


class Fleet:
    """A router, its facts, and engines by hand. `now_ns` advances only where a test says so."""

    def __init__(
        self, engines: int = 0, policy: RoutingPolicy = RoutingPolicy.LEAST_FINISH, seed: int = 0
    ) -> None:
        self.facts: list[FleetFact] = []
        self.now_ns = 0
        self.router = Router(RoutingSettings(policy=policy, seed=seed), self.facts.append, 0)
        self.numbers: dict[str, int] = {}
        self.counts: dict[str, list[int]] = {}  # received, ended
        self.choices: dict[str, int] = {}  # ended while their requests went on
        self.requests = 0
        for number in range(engines):
            self.join(f"e{number}")
            self.report(f"e{number}")

    def join(self, name: str, incarnation: int = 1) -> list[str]:
        self.counts[name], self.choices[name] = [0, 0], 0
        return self.router.joined(name, incarnation, 16, self.now_ns)

    def report(self, name: str, **changes: object) -> ReportStatus:
        """An idle engine's report, but for `changes`."""
        number = self.numbers[name] = self.numbers.get(name, 0) + 1
        received, ended = self.counts[name]
        fields: dict[str, object] = {
            "at_ns": self.now_ns, "engine": name, "incarnation": 1, "number": number, "age_ns": 0,
            "received": received, "ended": ended, "running": 0, "waiting": 0, "prompt_tokens": 0,
            "decode_rows": 0, "context_tokens": 0, "blocks_used": 0, "blocks_total": 4096,
            "max_seqs": 64, "budget_tokens": 2048, "target_ns": 100 * MS, "cost": COST,
            "choices_ended": self.choices[name],
        }  # fmt: skip
        return self.router.report(EngineReported(**(fields | changes)))  # type: ignore[arg-type]

    def request(
        self, tokens: int = 200, anchors: tuple[int, ...] = (), max_tokens: int = 100, **more: Any
    ) -> RouteRequest:
        self.requests += 1
        return RouteRequest(
            request_id=f"r{self.requests}",
            prompt_tokens=tokens,
            max_tokens=max_tokens,
            anchors=anchors,
            **more,
        )

    def send(self, request: RouteRequest | None = None) -> str:
        """Choose and send; the engine's name."""
        routed = self.router.choose(request or self.request(), self.now_ns)
        assert isinstance(routed, RequestRouted), routed
        self.router.sent(routed)
        self.counts[routed.engine][0] += 1
        return routed.engine

    def end(self, request_id: str, engine: str) -> None:
        self.counts[engine][1] += 1
        assert self.router.ended(request_id, 50, self.now_ns)

    def end_choice(self, request_id: str, engine: str) -> None:
        """Of a request with several, and not the last."""
        self.choices[engine] += self.router.choice_ended(request_id, self.now_ns)


def walk(seed: int, policy: RoutingPolicy, steps: int = 200) -> Fleet:
    """A fleet after `steps` random events: joins, reports, drains, deaths, sends and ends."""
    random = Random(seed)
    fleet = Fleet(random.randint(0, 6), policy, seed)
    for _ in range(steps):
        fleet.now_ns += random.choice((0, 1, 5 * MS, 200 * MS))
        _happen(fleet, random)
        fleet.router.check()
    return fleet


def _happen(fleet: Fleet, random: Random) -> None:
    router, names = fleet.router, fleet.router.engines
    engine = random.choice(names) if names else "e0"
    match random.choices(range(7), (2, 20, 1, 1, 40, 30, 20))[0]:
        case 0:
            fleet.join(f"e{random.randrange(8)}", 1)
        case 1 if names:
            anchors = tuple(random.randrange(40) for _ in range(3))
            number = fleet.numbers.get(engine, 0) + random.choice((1, 1, 1, 2))
            changes = PrefixChanges(number, random.random() < 0.2, anchors, anchors[:1])
            fleet.report(
                engine,
                running=random.randrange(9),
                prompt_tokens=random.randrange(3000),
                age_ns=random.choice((0, 100 * MS)),
                prefixes=random.choice((None, changes)),
            )
        case 2 if names:
            router.drain(engine, fleet.now_ns)
        case 3 if names:
            router.left(engine, LeaveReason.DIED, fleet.now_ns)
        case 4 if router.eligible:
            first = random.randrange(20)
            anchors = tuple(range(first, first + random.randrange(20)))
            target_ns = random.choice((None, 50 * MS, 300 * MS))
            tokens = random.randint(1, 2000)
            sequences = random.choice((1, 1, 4))
            fleet.send(
                fleet.request(tokens, anchors, ttft_target_ns=target_ns, sequences=sequences)
            )
        case 5 if router.outstanding(engine):
            fleet.end(random.choice(router.outstanding(engine)), engine)
        case 6 if router.outstanding(engine):
            fleet.end_choice(random.choice(router.outstanding(engine)), engine)
        case _:
            pass
