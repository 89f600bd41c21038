"""What must hold in a simulated fleet, numbered; each is checked on evidence of the world's own.

 1  one engine        a request is live at one engine at most, and not there again after its end
 2  one end           each request ends once, and nothing of it comes after its end
 3  eligible          none is sent to an engine that drains or is dead, once the router was told
 4  ages              no signal is younger than 0, or said to be older than it is
 5  book              what the router has outstanding at an engine is what it sent there and has not
                      seen end; in the end nothing
 6  same again        each choice comes out the same from the facts alone
 7  counted once      the router believes as many sequences at an engine as it has there itself,
                      where it is the only one
 8  conservation      requests that came are live or have ended, and all of the outputs arrived
 9  incarnations      no report of an earlier start of an engine is taken, nor one that is older
                      than the last
10  prefixes          after an engine said all that it holds, the router believes that, and what it
                      sent itself
11  candidates        a fact names at most as many candidates as allowed, each once, the chosen one
                      first, and the others that might have been chosen are counted
"""

from __future__ import annotations

from collections import defaultdict

from lab.fleet.engine import Made, SimEngine
from lab.fleet.outcome import Asked
from lab.simulation.evidence import require
from service.fleet.routing.decision_replay import replay_decisions
from service.fleet.routing.reports import ReportStatus
from service.fleet.routing.router import FleetFact, Router
from service.fleet.routing.settings import MAX_CANDIDATES
from telemetry.facts.fleet.routing_records import RequestRouted, RouteRefused
from telemetry.facts.reasons import EndReason


class FleetInvariants:
    """Watches one world. Raises InvariantViolated at the first event that is wrong."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._closed: set[str] = set()  # engines that the router was told not to use
        self._at: dict[str, dict[str, Asked]] = defaultdict(dict)  # by engine, by request
        self._numbers: dict[tuple[str, int], int] = {}
        self._incarnation: dict[str, int] = {}
        self._made_ns: dict[str, int] = {}

    def joined(self, engine: SimEngine) -> None:
        self._closed.discard(engine.name)
        self._incarnation[engine.name] = engine.incarnation
        self._made_ns.pop(engine.name, None)
        self._at[engine.name].clear()

    def closed(self, engine: str, left: bool) -> None:
        """The router was told that an engine drains, or (`left`) is gone."""
        self._closed.add(engine)
        if left:
            self._at[engine].clear()

    def reported(self, engine: SimEngine, made: Made, taken: ReportStatus) -> None:
        """The router was given a report."""
        newest = self._numbers.get((engine.name, engine.incarnation), 0)
        if taken is not ReportStatus.TAKEN:
            return
        current = self._incarnation.get(engine.name) == engine.incarnation
        require(9, current, f"{engine.name} reported for incarnation {engine.incarnation}")
        require(9, made.number > newest, f"{engine.name}: report {made.number} after {newest}")
        self._numbers[engine.name, engine.incarnation] = made.number
        self._made_ns[engine.name] = made.made_ns
        view = self._router._book.by_name[engine.name]
        if made.draining:
            self._closed.add(engine.name)
        self._residents(engine.name)
        prefixes = made.prefixes
        if prefixes is not None and prefixes.whole:
            own = {anchor for sent in view.outstanding.values() for anchor in sent.anchors}
            believed = set(self._router._book.prefixes.held(view.index))
            right = set(prefixes.added) | own
            require(10, believed == right, f"{engine.name}: {len(believed ^ right)} anchors differ")

    def routed(self, asked: Asked, request_id: str, fact: RequestRouted) -> None:
        """The router has chosen and sent."""
        require(1, asked.end is None, f"{request_id} was sent after its end")
        elsewhere = [name for name, there in self._at.items() if request_id in there]
        require(1, not elsewhere, f"{request_id} is at {elsewhere} and goes to {fact.engine}")
        require(3, fact.engine not in self._closed, f"{request_id} goes to {fact.engine}")
        names = [one.engine for one in fact.candidates]
        for one in fact.candidates:
            require(3, one.engine not in self._closed, f"{request_id}: {one.engine} was weighed")
            made_ns = self._made_ns.get(one.engine)
            if made_ns is None:
                require(4, one.age_ns is None, f"{one.engine} has not reported: {one.age_ns}")
                continue
            true_ns = fact.at_ns - made_ns
            right = one.age_ns is not None and 0 <= one.age_ns <= true_ns
            require(4, right, f"{one.engine}: {one.age_ns} ns old, in truth {true_ns}")
        few = 0 < len(names) <= MAX_CANDIDATES and len(set(names)) == len(names)
        require(11, few and names[0] == fact.engine, f"{request_id}: {names}")
        able = sum(name not in self._closed for name in self._incarnation)
        able -= len(set(self._router.last_excluded) - self._closed)
        total = len(names) + fact.left_out
        require(11, total <= able and fact.left_out >= 0, f"{total} candidates of {able}")
        self._at[fact.engine][request_id] = asked
        self._residents(fact.engine)

    def ended(self, asked: Asked, request_id: str, engine: str | None) -> None:
        """The router was told the end of a request, at an engine or (None) elsewhere."""
        require(2, asked.end is None, f"{request_id} ended twice")
        if engine is not None:
            there = self._at[engine].pop(request_id, None)
            require(2, there is not None, f"{request_id} ended at {engine}, where it is not")
            if not self._router.outstanding(engine) and not self._at[engine]:
                return
            self._residents(engine)

    def _residents(self, engine: str) -> None:
        there, book = self._at[engine], self._router.outstanding(engine)
        require(5, set(book) == set(there), f"{engine}: {sorted(set(book) ^ set(there))[:4]}")
        believed = self._router._book.by_name[engine].residents
        right = believed == len(there)
        require(7, right, f"{engine}: {believed} believed, {len(there)} are there")

    def at_end(self, asked: dict[str, Asked], facts: list[FleetFact]) -> None:
        """No event is left."""
        for request_id, one in asked.items():
            require(8, one.end is not None, f"{request_id} has no end")
            if one.end is EndReason.STOP_TOKEN or one.end is EndReason.EOS:
                whole = one.tokens == one.wanted_tokens
                require(8, whole, f"{request_id}: {one.tokens} of {one.wanted_tokens} tokens")
        left = [name for name in self._router.engines if self._router.outstanding(name)]
        require(5, not left, f"outstanding at the end: {left}")
        try:
            self._router.check()
        except AssertionError as error:
            require(5, False, error)
        sent = sum(isinstance(fact, RequestRouted) for fact in facts)
        tries = sum(len(one.engines) for one in asked.values())
        require(1, sent == tries, f"{sent} choices, {tries} submits")
        again = replay_decisions(facts)
        first = again.differing[0] if again.differing else None
        require(6, first is None, f"chosen otherwise from the facts: {_brief(first)}")
        require(6, not again.undecidable, f"{again.undecidable} choices do not follow")


def _brief(pair: tuple[RequestRouted, RequestRouted | RouteRefused] | None) -> str:
    if pair is None:
        return ""
    recorded, again = pair
    other = again.engine if isinstance(again, RequestRouted) else again.reason
    return f"{recorded.request_id}: {recorded.engine}, again {other}"
