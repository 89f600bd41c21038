"""A recorded fleet again, in virtual time: its requests, its engines, the production router.

Requests come when they came, however late they are served. Engines join, drain and leave when they
did; what they hold and what the router learns of it follows from where requests go now. An engine
beyond the recorded ones is like one of these, taken in turns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lab.fleet.engine import IDENTITY, SimEngine
from lab.fleet.faults import Death, Drain, Join
from lab.fleet.outcome import Asked
from lab.fleet.recorded.change import FleetChange
from lab.fleet.recorded.record import FleetRecord, RecordedAsk, RecordedEngine
from lab.fleet.recorded.requests import with_requests
from lab.fleet.recorded.texts import Texts
from lab.fleet.traffic import Session, Turn
from lab.fleet.twins.faults import LateReports, TwinFaults
from lab.fleet.twins.recorded_world import RecordedWorld
from lab.fleet.world import FleetScenario
from lab.simulation.sim_executor import FittedCost
from service.engine.admission import Limits
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.records import Fact, SequenceSubmitted

_SEEN_NS = 1_000_000
_FOR_EVER_NS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFaults(TwinFaults):
    """`pace` is of each engine: from when its steps took how much longer than by its cost."""

    pace: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    def slowness(self, engine: str) -> Callable[[int], float]:
        pace = self.pace.get(engine, ())
        times = [at_ns for at_ns, _ in pace]
        if not pace:
            return lambda now_ns: 1.0
        return lambda now_ns: pace[max(0, bisect_right(times, now_ns) - 1)][1]


def engines_of(record: FleetRecord, change: FleetChange) -> dict[str, RecordedEngine]:
    """Which engines there are, by name, each with the recorded one that it is like. Engines that
    only computed prompts are none of them."""
    recorded = [one for one in record.engines.values() if not one.only_computes_prompts]
    recorded = recorded or list(record.engines.values())
    wanted = change.engines or len(recorded)
    found = {one.name: one for one in recorded[:wanted]}
    for number in range(len(found), wanted):
        found[f"more-{number}"] = recorded[number % len(recorded)]
    return found


def limits_again(engine: RecordedEngine, change: FleetChange) -> Limits:
    """The limits of an engine in a simulation: it proposes no drafts and keeps no blocks on the
    host."""
    limits = replace(engine.limits, cache_identity=IDENTITY, draft_tokens=0, host_slots=0)
    return change.of_limits(limits)


def length_again(record: FleetRecord, ask: RecordedAsk) -> int:
    """How long its text is. Of one that was cut by its client only the cap is known; of one that
    was cut otherwise, that it is not shorter than what came, and perhaps as usual."""
    most = ask.routed.max_tokens
    if ask.is_finished:
        return max(1, min(most, ask.tokens))
    if ask.gone_after_ns is not None:
        return most
    return max(1, ask.tokens, min(most, record.typical_tokens))


class ReplayedFleet(RecordedWorld):
    """One run. Raises ConfigError where limits cannot be; AssertionError where they cannot hold
    the longest request."""

    sends_again = False

    def __init__(self, record: FleetRecord, change: FleetChange) -> None:
        self._record = record
        self._like = engines_of(record, change)
        self._limits = {name: limits_again(one, change) for name, one in self._like.items()}
        limits = next(iter(self._limits.values()))
        self._texts = Texts(record.asks, limits.block_tokens)
        self._asks = {ask.seq_id: ask for ask in record.asks}
        settings = RoutingSettings.of(record.started)
        scenario = FleetScenario(
            seed=0,
            engines=0,
            sessions=(),
            settings=change.routing(settings),
            link=record.link,
            limits=limits,
            faults=self._faults(change),
            begin_ns=record.begin_ns,
        )
        super().__init__(scenario, record.end_ns)
        for ask in record.asks:
            self._at(ask.at_ns, self._ask_again, ask)

    def replayed(self) -> list[Fact]:
        """Run it; the gateway's facts, in the order of time."""
        self.run()
        return with_requests(self._record, self.gateway_facts)

    # Requests

    def _ask_again(self, ask: RecordedAsk) -> None:
        length = length_again(self._record, ask)
        turn = Turn(ask.prompt_tokens, length)
        asked = Asked(
            Session(self.now_ns, ask.tenant, (), (turn,), 0),
            0,
            self.now_ns,
            self._texts.prompt(ask),
            length,
            max_tokens=ask.routed.max_tokens,
            ttft_target_ns=ask.routed.ttft_target_ns,
            itl_target_ns=ask.routed.itl_target_ns,
        )
        self._seq_ids = ask.seq_id - 1  # it gets its own again
        self._begin(ask.name, asked)
        if ask.gone_after_ns is not None:
            assert ask.reason is not None
            self._at(self.now_ns + ask.gone_after_ns, self._cancel, ask.name, ask.reason)

    def _sent(self, engine: SimEngine, seq_id: int) -> None:
        ask = self._asks[seq_id]
        self.gateway_facts.append(
            SequenceSubmitted(ask.request_id, self.now_ns, seq_id, ask.choice)
        )
        super()._sent(engine, seq_id)

    # Engines

    def _made(self, name: str, number: int) -> SimEngine:
        like, link = self._like[name], self.scenario.link
        cost = FittedCost(like.cost)
        engine = SimEngine(name, number + 1, self.now_ns, cost, link.whole_each, self._limits[name])
        engine.device.slow = self.faults.slowness(name)
        engine.device.said = lambda seq_id, index: self._texts.output(self._asks[seq_id], index)
        return engine

    def _faults(self, change: FleetChange) -> RecordedFaults:
        late = (LateReports(None, 0, _FOR_EVER_NS, change.signal_age_ns),)
        return RecordedFaults(
            events=tuple(
                event for name, like in self._like.items() for event in self._events_of(name, like)
            ),
            late=late if change.signal_age_ns else (),
            pace={name: tuple(one.slowness()) for name, one in self._like.items()},
        )

    def _events_of(self, name: str, like: RecordedEngine) -> list[Death | Drain | Join]:
        """An engine that none was recorded of is there all the time."""
        begin_ns = self._record.begin_ns
        if name != like.name:
            return [Join(begin_ns, name)]
        found: list[Death | Drain | Join] = []
        for joined_ns, left_ns in like.stays:
            if left_ns is not None and left_ns <= begin_ns + _SEEN_NS:
                continue
            found.append(Join(max(begin_ns, joined_ns), name))
            if left_ns is not None:
                died_ns = max(begin_ns, joined_ns, left_ns - 2 * _SEEN_NS)
                found.append(Death(died_ns, name, _SEEN_NS))
        if like.drained_ns is not None:
            found.append(Drain(max(begin_ns, like.drained_ns), name))
        return found
