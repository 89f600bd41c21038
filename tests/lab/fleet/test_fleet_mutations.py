"""Each invariant of a fleet can fail: a router broken on purpose is caught by the one it breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from lab.fleet.faults import Death, FleetFaults, Join
from lab.fleet.link import Link
from lab.fleet.outcome import Asked
from lab.fleet.scenarios import fleet_chaos
from lab.fleet.world import FleetScenario, FleetWorld
from lab.simulation.evidence import InvariantViolated
from service.fleet.routing.reports import ReportStatus
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.router import Router
from telemetry.facts.fleet.routing_records import (
    EngineReported,
    LeaveReason,
    PrefixChanges,
    RequestRouted,
    RouteRefused,
)
from telemetry.facts.reasons import EndReason

SEEDS = 60


def is_caught(
    number: int,
    make: Callable[..., Router],
    world: type[FleetWorld],
    scenario: Callable[[int], FleetScenario] = fleet_chaos,
) -> bool:
    """Whether some fleet with faults finds this invariant broken."""
    for seed in range(SEEDS):
        try:
            world(scenario(seed), make).run()
        except InvariantViolated as error:
            if error.number == number:
                return True
        except (AssertionError, KeyError):
            continue  # a check of the product was faster; another seed will do
    return False


class ForgetsDrains(Router):
    """INV-3: an engine that drains goes on being chosen."""

    def drain(self, engine: str, now_ns: int) -> None:
        pass

    def report(self, report: EngineReported) -> ReportStatus:
        return super().report(replace(report, draining=False))


class SaysOlder(Router):
    """INV-4: a signal is said to be older than it is."""

    def choose(self, request: RouteRequest, now_ns: int) -> RequestRouted | RouteRefused:
        routed = super().choose(request, now_ns)
        if isinstance(routed, RouteRefused):
            return routed
        older = [
            replace(one, age_ns=one.age_ns and one.age_ns + 10**9) for one in routed.candidates
        ]
        return replace(routed, candidates=tuple(older))


class ForgetsEnds(Router):
    """INV-5: every second end is not booked."""

    seen = 0

    def ended(self, request_id: str, output_tokens: int | None, now_ns: int) -> bool:
        self.seen += 1
        return bool(self.seen % 2) and super().ended(request_id, output_tokens, now_ns)


class ChoosesByChance(Router):
    """INV-6: a choice depends on how often it was asked."""

    asked = 0

    def choose(self, request: RouteRequest, now_ns: int) -> RequestRouted | RouteRefused:
        self.asked += 1
        if self.asked % 3 or self.eligible < 2:
            return super().choose(request, now_ns)
        routed = super().choose(request, now_ns)
        if isinstance(routed, RouteRefused):
            return routed
        other = replace(request, excluded=(*(request.excluded or ()), routed.engine))
        again = super().choose(other, now_ns)
        return again if isinstance(again, RouteRefused) else replace(again, excluded=())


class CountsTwice(Router):
    """INV-7: what a report contains is added once more."""

    def report(self, report: EngineReported) -> ReportStatus:
        return super().report(replace(report, received=0))


class TakesOldReports(Router):
    """INV-9: the number of a report is not looked at."""

    def report(self, report: EngineReported) -> ReportStatus:
        view = self._book.by_name.get(report.engine)
        if view is not None:
            view.report = None
        return super().report(report)


class TakesOldIncarnations(Router):
    """INV-9: nor is the incarnation."""

    def report(self, report: EngineReported) -> ReportStatus:
        view = self._book.by_name.get(report.engine)
        if view is None:
            return ReportStatus.UNKNOWN_ENGINE
        return super().report(replace(report, incarnation=view.incarnation))


class KeepsPrefixes(Router):
    """INV-10: what an engine holds no more is believed for ever."""

    def report(self, report: EngineReported) -> ReportStatus:
        changes = report.prefixes
        view = self._book.by_name.get(report.engine)
        if changes is not None and view is not None:
            held = tuple(self._book.prefixes.held(view.index))
            more = PrefixChanges(changes.number, changes.whole, (*changes.added, *held))
            taken = super().report(replace(report, prefixes=more))
            return taken
        return super().report(report)


class NamesTwice(Router):
    """INV-11: the facts name the chosen engine last."""

    def choose(self, request: RouteRequest, now_ns: int) -> RequestRouted | RouteRefused:
        routed = super().choose(request, now_ns)
        if isinstance(routed, RouteRefused):
            return routed
        return replace(routed, candidates=(*routed.candidates[1:], routed.candidates[0]))


class SendsTwice(FleetWorld):
    """INV-1: a request whose engine is slow is sent to another one too."""

    def _route(self, request_id: str, asked: Asked, excluded: tuple[str, ...]) -> None:
        super()._route(request_id, asked, excluded)
        if asked.end is None and self._seq_ids % 5 == 0:
            engine = self.router._engine_of.pop(request_id)
            engine.ended(request_id, False)
            self.router._book.outstanding -= 1
            super()._route(request_id, asked, ())


class EndsTwice(FleetWorld):
    """INV-2: the end of a request is told twice."""

    def _close(self, request_id: str, asked: Asked, engine: str | None, reason: Any) -> None:
        super()._close(request_id, asked, engine, reason)
        super()._close(request_id, asked, None, reason)


class LosesRequests(FleetWorld):
    """INV-8: what an engine that died had is forgotten."""

    def _left(self, engine: Any, reason: LeaveReason) -> None:
        self.router.left(engine.name, reason, self.now_ns)
        assert self._invariants is not None
        self._invariants.closed(engine.name, left=True)


class LosesTokens(FleetWorld):
    """INV-8: an output is short of a token."""

    def _close(self, request_id: str, asked: Asked, engine: str | None, reason: Any) -> None:
        asked.tokens -= reason is EndReason.EOS
        super()._close(request_id, asked, engine, reason)


@pytest.mark.parametrize(
    ("number", "broken"),
    [
        (1, SendsTwice),
        (2, EndsTwice),
        (3, ForgetsDrains),
        (4, SaysOlder),
        (5, ForgetsEnds),
        (6, ChoosesByChance),
        (7, CountsTwice),
        (8, LosesRequests),
        (8, LosesTokens),
        (9, TakesOldReports),
        (10, KeepsPrefixes),
        (11, NamesTwice),
    ],
)
def test_the_invariant_catches_what_breaks_it(number: int, broken: type[Any]) -> None:
    if issubclass(broken, FleetWorld):
        assert is_caught(number, Router, broken)
    else:
        assert is_caught(number, broken, FleetWorld)


def test_a_report_of_an_earlier_start_is_caught() -> None:
    """INV-9, in a fleet whose engine comes back while its old reports are under way."""

    def comes_back(seed: int) -> FleetScenario:
        died_ns = 1_000_000_000
        return dataclasses.replace(
            fleet_chaos(seed),
            link=Link(jitter_ns=400_000_000, report_period_ns=100_000_000),
            faults=FleetFaults(events=(Death(died_ns, "e0", 0), Join(died_ns + 1, "e0"))),
        )

    FleetWorld(comes_back(0)).run()
    assert is_caught(9, TakesOldIncarnations, FleetWorld, comes_back)
