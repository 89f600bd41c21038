"""A fleet's world that records what a gateway in production records of it, and nothing else.

Beside the router's facts: what was sent, admitted, received and accounted for, and exchanges of
clocks. Each node has a clock of its own. Facts come in the order of their stamps.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from lab.fleet.engine import Made, SimEngine
from lab.fleet.outcome import Asked
from lab.fleet.twins.faults import TwinFaults
from lab.fleet.world import FleetScenario, FleetWorld
from service.engine.inbox import FlushCache, Submit
from service.engine.plan import Emission
from service.fleet.routing.router import FleetFact, Router
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.engine_records import SequenceAdmitted
from telemetry.facts.fleet.routing_records import LeaveReason
from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    ReceivedRow,
    RemoteAccount,
    RemoteAccounted,
    RemoteAdmitted,
    RemotePart,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact

_BEAT_NS = 1_000_000_000
_SKEW_NS = 7_919_000_000
_READ_NS = 60_000

MakeRouter = Callable[[RoutingSettings, Callable[[FleetFact], None], int], Router]


class RecordedWorld(FleetWorld):
    """`gateway_facts` are those of its gateway. Nodes beat until `until_ns`."""

    def __init__(
        self, scenario: FleetScenario, until_ns: int, make_router: MakeRouter = Router
    ) -> None:
        assert isinstance(scenario.faults, TwinFaults)
        self.faults: TwinFaults = scenario.faults
        self.gateway_facts: list[Fact] = []
        self._until_ns = until_ns
        self._received_ns: dict[int, int] = {}  # by the node's clock
        self._first_ns: dict[int, int] = {}

        def made(settings: RoutingSettings, _: Any, now_ns: int) -> Router:
            return make_router(settings, self.gateway_facts.append, now_ns)

        super().__init__(scenario, made, watch=False)
        for flush in self.faults.flushes:
            self._at(flush.at_ns, self._flush, flush.engine)

    def run(self) -> None:
        super().run()
        self.gateway_facts.sort(key=lambda fact: fact.at_ns)  # type: ignore[union-attr]

    def node_ns(self, engine: SimEngine, at_ns: int) -> int:
        """What the clock of an engine's node shows."""
        skew_ns = _SKEW_NS * engine.incarnation
        return at_ns + skew_ns + self.faults.ahead_ns(engine.name, at_ns)

    # Requests

    def _route(self, request_id: str, asked: Asked, excluded: tuple[str, ...]) -> None:
        before = asked.seq_id
        super()._route(request_id, asked, excluded)
        if asked.seq_id != before:
            self._sent(self._of[asked.seq_id][1], asked.seq_id)

    def _sent(self, engine: SimEngine, seq_id: int) -> None:
        self.gateway_facts.append(
            SequenceSent(self.now_ns, seq_id, engine.name, engine.incarnation)
        )

    def _arrive(self, engine: SimEngine, submit: Submit, asked: Asked) -> None:
        self._received_ns[submit.seq_id] = self.node_ns(engine, self.now_ns)
        super()._arrive(engine, submit, asked)

    def _take(self, engine: SimEngine, emissions: list[Emission]) -> None:
        for fact in engine.admitted:
            self._at(fact.at_ns + self.scenario.link.delay_ns, self._admitted, engine, fact)
        rows = [one.seq_id for one in emissions if one.sample is not None]
        if rows:  # before any of them ends
            self._at(engine.clock.now_ns() + self.scenario.link.delay_ns, self._got, engine, rows)
        super()._take(engine, emissions)

    def _admitted(self, engine: SimEngine, fact: SequenceAdmitted) -> None:
        if fact.seq_id in self._of and self._is_heard(engine):
            known, hit = fact.known_tokens, fact.hit_tokens
            self.gateway_facts.append(
                RemoteAdmitted(self.now_ns, fact.seq_id, engine.name, known, hit, fact.ghost_tokens)
            )

    def _got(self, engine: SimEngine, seq_ids: list[int]) -> None:
        """A frame with tokens is read."""
        rows = tuple(ReceivedRow(seq_id, 1) for seq_id in seq_ids if seq_id in self._of)
        if rows and self._is_heard(engine):
            for row in rows:
                self._first_ns.setdefault(row.seq_id, self.now_ns)
            self.gateway_facts.append(TokensReceived(self.now_ns, engine.name, rows))

    def _ended(self, engine: SimEngine, seq_id: int, reason: EndReason, emitted_ns: int) -> None:
        was_there = seq_id in self._of
        super()._ended(engine, seq_id, reason, emitted_ns)
        if was_there and seq_id not in self._of:
            self._accounted(engine, seq_id, reason, emitted_ns)

    def _accounted(
        self, engine: SimEngine, seq_id: int, reason: EndReason, emitted_ns: int | None
    ) -> None:
        """`emitted_ns` None: no account comes."""
        account = None
        if emitted_ns is not None:
            begin_ns, end_ns = self._received_ns[seq_id], self.node_ns(engine, emitted_ns)
            parts = (RemotePart("engine", end_ns - begin_ns),)
            account = RemoteAccount(begin_ns, end_ns, parts)
        self._received_ns.pop(seq_id, None)
        first_ns = self._first_ns.pop(seq_id, None)
        self.gateway_facts.append(
            RemoteAccounted(
                self.now_ns, seq_id, engine.name, engine.incarnation, reason, account, first_ns
            )
        )

    def _left(self, engine: SimEngine, reason: LeaveReason) -> None:
        before = {seq_id for seq_id, (_, there) in self._of.items() if there is engine}
        super()._left(engine, reason)
        for seq_id in sorted(before - set(self._of)):
            self._accounted(engine, seq_id, EndReason.ENGINE_DIED, None)

    def _is_heard(self, engine: SimEngine) -> bool:
        """Whether the gateway is connected to that incarnation."""
        return self._engines.get(engine.name) is engine and engine.dead_ns is None

    # Nodes

    def _join(self, name: str) -> None:
        super()._join(name)
        self._at(self.now_ns + _BEAT_NS, self._beat, self._engines[name], count(1))

    def _beat(self, engine: SimEngine, numbers: Any) -> None:
        """The gateway sends a beat, and its answer comes two delays later."""
        if self.now_ns >= self._until_ns or not self._is_heard(engine):
            return
        delay_ns = self.scenario.link.delay_ns
        read_ns = self.node_ns(engine, self.now_ns + delay_ns)
        back_ns = self.now_ns + 2 * delay_ns + _READ_NS
        self._at(back_ns, self._answered, engine, self.now_ns, read_ns)
        self._at(self.now_ns + _BEAT_NS, self._beat, engine, numbers)

    def _answered(self, engine: SimEngine, sent_ns: int, read_ns: int) -> None:
        self.gateway_facts.append(
            ClockSampled(
                self.now_ns, engine.name, engine.incarnation, sent_ns, read_ns, read_ns + _READ_NS
            )
        )

    def _reported(self, engine: SimEngine, made: Made) -> None:
        late_ns = self.faults.late_ns(engine.name, made.made_ns)
        if late_ns and self.now_ns < made.made_ns + late_ns:
            self._reports_waiting += 1
            self._at(made.made_ns + late_ns, self._reported, engine, made)
            return
        super()._reported(engine, made)

    def _flush(self, name: str) -> None:
        engine = self._engines[name]
        engine.command(FlushCache())
        self._wake(engine)
