"""A fleet in virtual time: clients, a gateway with the production router, links, engines, faults.

One queue has the next event of each. A run is a function of its scenario: same scenario, same
facts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lab.fleet.engine import COST, IDENTITY, KEY, LIMITS, Made, SimEngine, token_of
from lab.fleet.faults import Death, Drain, FleetFaults, Join
from lab.fleet.invariants import FleetInvariants
from lab.fleet.link import Link
from lab.fleet.outcome import TARGET, Asked, Outcome, outcome_of
from lab.fleet.traffic import Session
from lab.simulation.sim_executor import FittedCost, LinearCost
from service.engine.admission import Limits
from service.engine.inbox import Cancel, Submit
from service.engine.plan import Emission, SamplingParams
from service.fleet.routing.anchors import anchors_of
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.router import FleetFact, Router
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import LeaveReason, RouteRefused
from telemetry.facts.reasons import EndReason
from telemetry.requests.slo_policy import SloClass

_END_TOKENS = (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScenario:
    """All that a run depends on. Engine `number` has the cost `costs[number % len(costs)]`. Time
    begins at `begin_ns`. Requests are promised the `target`."""

    seed: int
    engines: int
    sessions: tuple[Session, ...]
    settings: RoutingSettings
    link: Link = field(default_factory=Link)
    costs: tuple[LinearCost | FittedCost, ...] = (COST,)
    limits: Limits = LIMITS
    target: SloClass = TARGET
    faults: FleetFaults = field(default_factory=FleetFaults)
    begin_ns: int = 0


class FleetWorld:
    """Runs one scenario. Requests without a token whose engine is lost go to another one if the
    gateway `sends_again`. `make_router` lets a test put a broken one in. Without `watch` no
    invariant is checked and no fact is kept: for measurements."""

    sends_again = True

    def __init__(
        self,
        scenario: FleetScenario,
        make_router: Callable[..., Router] = Router,
        watch: bool = True,
    ) -> None:
        self.scenario = scenario
        self.now_ns = scenario.begin_ns
        self.facts: list[FleetFact] = []
        self.asked: dict[str, Asked] = {}
        self._random = Random(scenario.seed)
        record = self.facts.append if watch else _forget
        self.router = make_router(scenario.settings, record, self.now_ns)
        self._invariants = FleetInvariants(self.router) if watch else None
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._orders = self._seq_ids = self._joins = 0
        self._reports_waiting = 0
        self._engines: dict[str, SimEngine] = {}
        self._all: list[SimEngine] = []
        self._of: dict[int, tuple[str, SimEngine]] = {}
        for number in range(scenario.engines):
            self._join(f"e{number}")
        for session in scenario.sessions:
            self._at(session.at_ns, self._ask, session, 0, [*session.prefix])
        self._schedule_faults(scenario.faults)

    def run(self) -> None:
        """Until no event is left. Raises InvariantViolated."""
        while self._events:
            at_ns, _, event, arguments = heapq.heappop(self._events)
            self._reports_waiting -= event in (self._report_is_due, self._reported)
            self.now_ns = at_ns
            event(*arguments)
        if self._invariants is not None:
            self._invariants.at_end(self.asked, self.facts)

    def outcome(self, begin_ns: int, end_ns: int) -> Outcome:
        """The outcome of the requests that came in that time; the share of hits is of all."""
        prompt = sum(engine.prompt_tokens for engine in self._all)
        hit = sum(engine.hit_tokens for engine in self._all)
        return outcome_of(
            list(self.asked.values()), begin_ns, end_ns, hit / prompt if prompt else 0.0
        )

    def _at(self, at_ns: int, event: Callable[..., None], *arguments: Any) -> None:
        self._orders += 1
        heapq.heappush(self._events, (at_ns, self._orders, event, arguments))

    def _next_report(self, engine: SimEngine, after_ns: int) -> None:
        self._reports_waiting += 1
        self._at(self.now_ns + after_ns, self._report_is_due, engine)

    # Clients

    def _ask(self, session: Session, turn: int, before: list[int]) -> None:
        """A request comes to the gateway."""
        prompt = [*before, *session.new_tokens(turn)]
        prompt = prompt[: self.scenario.limits.max_model_tokens - session.max_tokens - 1]
        wanted, target = session.turns[turn].output_tokens, self.scenario.target
        asked = Asked(
            session, turn, self.now_ns, prompt, wanted, session.max_tokens,
            target.ttft_ns, target.itl_ns, target,
        )  # fmt: skip
        request_id = f"r{len(self.asked)}"
        self._begin(request_id, asked)
        cancel_ns = self.scenario.faults.cancel_after(self._random)
        if cancel_ns is not None:
            self._at(self.now_ns + cancel_ns, self._cancel, request_id)

    def _begin(self, request_id: str, asked: Asked) -> None:
        self.asked[request_id] = asked
        self._route(request_id, asked, ())

    def _route(self, request_id: str, asked: Asked, excluded: tuple[str, ...]) -> None:
        request = RouteRequest(
            request_id=request_id,
            prompt_tokens=len(asked.prompt),
            max_tokens=asked.max_tokens,
            anchors=anchors_of(
                asked.prompt,
                self.scenario.limits.block_tokens,
                key=KEY,
                identity=IDENTITY,
                tenant=asked.session.tenant,
            ),
            itl_target_ns=asked.itl_target_ns,
            ttft_target_ns=asked.ttft_target_ns,
            excluded=excluded,
        )
        routed = self.router.choose(request, self.now_ns)
        if isinstance(routed, RouteRefused):
            self.router.refused(routed)
            self._close(request_id, asked, None, routed.reason)
            return
        self.router.sent(routed)
        if self._invariants is not None:
            self._invariants.routed(asked, request_id, routed)
        engine = self._engines[routed.engine]
        asked.engines.append(engine.name)
        self._seq_ids += 1
        asked.seq_id = self._seq_ids
        self._of[asked.seq_id] = (request_id, engine)
        submit = self._submit_of(asked)
        self._at(self.now_ns + self.scenario.link.delay_ns, self._arrive, engine, submit, asked)

    def _submit_of(self, asked: Asked) -> Submit:
        ttft_ns = asked.ttft_target_ns
        return Submit(
            seq_id=asked.seq_id,
            prompt=asked.prompt,
            max_tokens=asked.max_tokens,
            sampling=SamplingParams(temperature=0.0),
            tenant=asked.session.tenant,
            end_token_ids=_END_TOKENS,
            first_token_by_ns=None if ttft_ns is None else asked.at_ns + ttft_ns,
            ttft_target_ns=ttft_ns,
            itl_target_ns=asked.itl_target_ns,
        )

    def _cancel(self, request_id: str, reason: EndReason = EndReason.DISCONNECT) -> None:
        """The client hangs up."""
        asked = self.asked[request_id]
        if asked.end is None and asked.seq_id in self._of:
            engine = self._of[asked.seq_id][1]
            command = Cancel(asked.seq_id, reason)
            self._at(self.now_ns + self.scenario.link.delay_ns, self._hang_up, engine, command)

    # Engines

    def _arrive(self, engine: SimEngine, submit: Submit, asked: Asked) -> None:
        if engine.dead_ns is None:
            engine.submit(submit, asked.wanted_tokens)
            self._wake(engine)

    def _hang_up(self, engine: SimEngine, command: Cancel) -> None:
        if engine.dead_ns is None:
            engine.command(command)
            self._wake(engine)

    def _wake(self, engine: SimEngine) -> None:
        if not engine.is_busy:
            engine.next_turn_ns = self.now_ns
            self._at(self.now_ns, self._turn, engine)

    def _turn(self, engine: SimEngine) -> None:
        """An engine is between two steps."""
        if engine.dead_ns is not None:
            return
        if engine.report_due:
            engine.report_due = False
            self._report(engine)
        emissions = engine.turn(self.now_ns)
        if emissions is None:
            engine.next_turn_ns = None
            return
        self._take(engine, emissions)
        engine.rest()
        engine.next_turn_ns = engine.clock.now_ns()
        self._at(engine.next_turn_ns, self._turn, engine)

    def _take(self, engine: SimEngine, emissions: list[Emission]) -> None:
        """What the step emitted, at its end; it comes to the gateway a delay later."""
        end_ns = engine.clock.now_ns()
        arrives_ns = end_ns + self.scenario.link.delay_ns
        for emission in emissions:
            request_id, _ = self._of[emission.seq_id]
            if emission.sample is not None:
                self.asked[request_id].got_token(arrives_ns)
            if emission.end is not None:
                self._at(arrives_ns, self._ended, engine, emission.seq_id, emission.end, end_ns)

    def _ended(self, engine: SimEngine, seq_id: int, reason: EndReason, emitted_ns: int) -> None:
        """The end of a sequence comes to the gateway."""
        request_id, _ = self._of.get(seq_id, ("", engine))
        if not request_id or (engine.dead_ns is not None and emitted_ns > engine.dead_ns):
            return
        asked = self.asked[request_id]
        del self._of[seq_id]
        self.router.ended(request_id, asked.tokens, self.now_ns)
        self._close(request_id, asked, engine.name, reason)

    def _close(self, request_id: str, asked: Asked, engine: str | None, reason: Any) -> None:
        """A request is over; its session may go on."""
        if self._invariants is not None:
            self._invariants.ended(asked, request_id, engine)
        asked.end = reason
        session, turn = asked.session, asked.turn
        finished = reason in (EndReason.EOS, EndReason.MAX_TOKENS)
        if finished and turn + 1 < len(session.turns):
            said = [token_of(asked.seq_id)] * max(0, asked.tokens - 1)
            pause_ns = session.turns[turn].pause_ns
            self._at(self.now_ns + pause_ns, self._ask, session, turn + 1, [*asked.prompt, *said])

    # Reports

    def _report_is_due(self, engine: SimEngine) -> None:
        if engine.dead_ns is not None or engine.name not in self._engines:
            return
        if self._engines[engine.name] is not engine:
            return
        if engine.is_busy:
            engine.report_due = True  # after the step that runs
        else:
            self._report(engine)
        if len(self._events) > self._reports_waiting:  # anything else will happen
            self._next_report(engine, self.scenario.link.report_period_ns)

    def _report(self, engine: SimEngine) -> None:
        made = engine.report(self.now_ns)
        stale = self.scenario.faults.is_silent(engine.name, self.now_ns)
        arrives_ns = self.scenario.link.report_arrives(self.now_ns, self._random)
        if arrives_ns is not None and not stale:
            self._reports_waiting += 1
            self._at(arrives_ns, self._reported, engine, made)

    def _reported(self, engine: SimEngine, made: Made) -> None:
        report = engine.as_fact(made, self.now_ns, self.scenario.link.delay_ns)
        taken = self.router.report(report)
        if self._invariants is not None:
            self._invariants.reported(engine, made, taken)

    # Who is there

    def _join(self, name: str) -> None:
        engine = self._made(name, self._joins)
        self._joins += 1
        self._engines[name] = engine
        self._all.append(engine)
        lost = self.router.joined(name, engine.incarnation, engine.block_tokens, self.now_ns)
        assert not lost, f"{name} is there already"
        if self._invariants is not None:
            self._invariants.joined(engine)
        self._next_report(engine, self._random.randrange(self.scenario.link.report_period_ns))

    def _made(self, name: str, number: int) -> SimEngine:
        """The engine that joins as the `number`-th."""
        costs, link, limits = self.scenario.costs, self.scenario.link, self.scenario.limits
        cost = costs[number % len(costs)]
        engine = SimEngine(name, number + 1, self.now_ns, cost, link.whole_each, limits)
        engine.device.slow = self.scenario.faults.slowness(name)
        return engine

    def _schedule_faults(self, faults: FleetFaults) -> None:
        for event in faults.events:
            match event:
                case Death():
                    self._at(event.at_ns, self._die, event)
                case Drain():
                    self._at(event.at_ns, self._drain, event)
                case Join():
                    self._at(event.at_ns, self._join, event.engine)

    def _die(self, event: Death) -> None:
        """An engine's process ends; the gateway sees it by the connection."""
        engine = self._engines[event.engine]
        if engine.dead_ns is None:
            engine.dead_ns = self.now_ns
            self._at(self.now_ns + event.seen_after_ns, self._left, engine, LeaveReason.DIED)

    def _left(self, engine: SimEngine, reason: LeaveReason) -> None:
        """Requests that had no token yet are sent elsewhere, once; the others fail."""
        lost = self.router.left(engine.name, reason, self.now_ns)
        if self._invariants is not None:
            self._invariants.closed(engine.name, left=True)
        assert engine.dead_ns is not None
        for request_id in lost:
            asked = self.asked[request_id]
            self._of.pop(asked.seq_id, None)
            last_ns = engine.dead_ns + self.scenario.link.delay_ns
            started = asked.first_ns is not None and asked.first_ns <= last_ns
            if started or len(asked.engines) > 1 or not self.sends_again:
                self._close(request_id, asked, None, EndReason.ENGINE_DIED)
                continue
            asked.first_ns, asked.tokens, asked.late = None, 0, 0
            self._route(request_id, asked, (engine.name,))

    def _drain(self, event: Drain) -> None:
        engine = self._engines[event.engine]
        if event.by_report:
            engine.draining = True
        elif engine.dead_ns is None:
            self.router.drain(event.engine, self.now_ns)
            if self._invariants is not None:
                self._invariants.closed(event.engine, left=False)


def _forget(fact: FleetFact) -> None:
    pass
