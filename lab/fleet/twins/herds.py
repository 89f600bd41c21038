"""Gateways that all send to the same engine until its next report.

`Forgetful` is one gateway that does not count what it sent itself since. `CrowdedWorld` has many
gateways that are right, each by itself: none knows what the others send.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_fact

from lab.fleet.engine import Made, SimEngine
from lab.fleet.outcome import Asked
from lab.fleet.twins.recorded_world import RecordedWorld
from lab.fleet.world import FleetScenario
from service.engine.inbox import Submit
from service.engine.plan import Emission
from service.fleet.routing.prediction import candidates
from service.fleet.routing.reports import ReportStatus
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.router import FleetFact, Router
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.engine_records import SequenceAdmitted
from telemetry.facts.fleet.routing_records import (
    EngineReported,
    LeaveReason,
    RequestRouted,
    RouteRefused,
)
from telemetry.facts.reasons import EndReason


class Forgetful(Router):
    """From `since_ns` until `until_ns` it chooses by what the last reports said, whatever it has
    sent since."""

    def __init__(
        self,
        settings: RoutingSettings,
        record: Callable[[FleetFact], None],
        now_ns: int,
        since_ns: int,
        until_ns: int,
    ) -> None:
        super().__init__(settings, record, now_ns)
        self._since_ns, self._until_ns = since_ns, until_ns
        self._reported: dict[str, tuple[int, int]] = {}

    def report(self, report: EngineReported) -> ReportStatus:
        taken = super().report(report)
        if taken is ReportStatus.TAKEN:
            load = report.prompt_tokens, report.running + report.waiting
            self._reported[report.engine] = load
        return taken

    def choose(self, request: RouteRequest, now_ns: int) -> RequestRouted | RouteRefused:
        routed = super().choose(request, now_ns)
        if isinstance(routed, RouteRefused) or not self._since_ns <= now_ns < self._until_ns:
            return routed
        best = min(self._reported, key=lambda name: (self._reported[name], name), default=None)
        view = None if best is None else self._book.by_name.get(best)
        if view is None or view.name == routed.engine or view.draining:
            return routed
        held = {view.index: self._book.cached_tokens(view.index, request)}
        chosen = candidates(self._book.predicted(held, request, now_ns), now_ns)
        others = [one for one in routed.candidates if one.engine != view.name]
        return replace_fact(
            routed,
            engine=view.name,
            incarnation=view.incarnation,
            ordinal=view.sent_count + 1,
            candidates=(*chosen, *others[:7]),
            left_out=routed.left_out + len(routed.candidates) - 1 - len(others[:7]),
        )


class CrowdedWorld(RecordedWorld):
    """In [since_ns, until_ns) of `gateways` gateways each has its share of the requests; the facts
    are those of the first. Before and after, it has all of them."""

    def __init__(
        self, scenario: FleetScenario, end_ns: int, gateways: int, since_ns: int, until_ns: int
    ) -> None:
        self._since_ns, self._until_ns = since_ns, until_ns
        self._turn_of = 0
        self._router_of: dict[int, int] = {}  # by sequence
        self._arrived: dict[SimEngine, list[int]] = defaultdict(list)
        self._over: dict[SimEngine, list[int]] = defaultdict(list)
        self._others: list[Router] = []
        for number in range(1, gateways):
            settings = replace(scenario.settings, seed=scenario.settings.seed + number)
            self._others.append(Router(settings, _forget, 0))
        super().__init__(scenario, end_ns)
        self._first = self.router

    def _route(self, request_id: str, asked: Asked, excluded: tuple[str, ...]) -> None:
        number = 0
        if self._since_ns <= self.now_ns < self._until_ns:
            self._turn_of = (self._turn_of + 1) % (len(self._others) + 1)
            number = self._turn_of
        self.router = self._first if number == 0 else self._others[number - 1]
        super()._route(request_id, asked, excluded)
        self.router = self._first

    def _sent(self, engine: SimEngine, seq_id: int) -> None:
        number = 0 if self.router is self._first else 1 + self._others.index(self.router)
        self._router_of[seq_id] = number
        if number == 0:
            super()._sent(engine, seq_id)

    def _arrive(self, engine: SimEngine, submit: Submit, asked: Asked) -> None:
        self._arrived[engine].append(self._router_of[submit.seq_id])
        super()._arrive(engine, submit, asked)

    def _take(self, engine: SimEngine, emissions: list[Emission]) -> None:
        super()._take(engine, emissions)
        for emission in emissions:
            if emission.end is not None:
                self._over[engine].append(self._router_of[emission.seq_id])

    def _ended(self, engine: SimEngine, seq_id: int, reason: EndReason, emitted_ns: int) -> None:
        number = self._router_of.get(seq_id, 0)
        self.router = self._first if number == 0 else self._others[number - 1]
        super()._ended(engine, seq_id, reason, emitted_ns)
        self.router = self._first

    def _reported(self, engine: SimEngine, made: Made) -> None:
        """Each gateway is told how many of its own requests a report contains."""
        report = engine.as_fact(made, self.now_ns, self.scenario.link.delay_ns)
        received = Counter(self._arrived[engine][: made.received])
        ended = Counter(self._over[engine][: made.ended])
        for number, router in enumerate((self._first, *self._others)):
            router.report(replace_fact(report, received=received[number], ended=ended[number]))

    def _join(self, name: str) -> None:
        super()._join(name)
        engine = self._engines[name]
        for router in self._others:
            block_tokens = self.scenario.limits.block_tokens
            router.joined(name, engine.incarnation, block_tokens, self.now_ns)

    def _left(self, engine: SimEngine, reason: LeaveReason) -> None:
        raise NotImplementedError("engines of a crowded world do not die")

    # Facts are those of the first gateway

    def is_own(self, seq_id: int) -> bool:
        return self._router_of.get(seq_id, 0) == 0

    def _admitted(self, engine: SimEngine, fact: SequenceAdmitted) -> None:
        if self.is_own(fact.seq_id):
            super()._admitted(engine, fact)

    def _got(self, engine: SimEngine, seq_ids: list[int]) -> None:
        super()._got(engine, [one for one in seq_ids if self.is_own(one)])

    def _accounted(
        self, engine: SimEngine, seq_id: int, reason: EndReason, emitted_ns: int | None
    ) -> None:
        if self.is_own(seq_id):
            super()._accounted(engine, seq_id, reason, emitted_ns)


def _forget(fact: Any) -> None:
    pass
