"""The facts of one gateway of a fleet, read as what came, who served, and how fast."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from msgspec.structs import asdict

from lab.fleet.engine import LIMITS
from lab.fleet.link import Link
from service.engine.admission import Limits
from service.engine.inbox import SetStepCost
from service.engine.limits_record import limits_of
from service.fleet.membership.members import Role
from service.fleet.routing.engine_view import ASSUMED_COST
from telemetry.facts.engine_records import EngineStarted, StepCostSet
from telemetry.facts.fleet.routing_records import (
    EngineDrainBegan,
    EngineJoined,
    EngineLeft,
    EngineReported,
    RequestRouted,
    RouterStarted,
)
from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    RemoteAccounted,
    RemoteAdmitted,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.numbers.quantiles import median, quantile

RequestFact = RequestAccepted | RequestParsed | RequestTokenized | SequenceSubmitted | RequestEnded
_LEAST_COST_NS = 1_000
_BEFORE_NS = 2_000_000_000
"""A simulation begins so long before the first request: the router gets reports."""
_NOT_OF_THE_COST = ("at_ns", "step_id")
_LOST = (None, EndReason.ENGINE_DIED)  # of a request that is sent again: its end comes after that


class FleetNotReplayable(Exception):
    """The record does not carry what a simulation of the fleet needs; the message is one line."""


@dataclass(slots=True)
class RecordedAsk:
    """One sequence that was sent to an engine. `tokens` came back in all, and it ended for `reason`
    at `ended_ns`; None: it was live when the record ends. `hit_tokens` of its prompt were in the
    cache of its engine."""

    seq_id: int
    request_id: str
    routed: RequestRouted
    at_ns: int
    choice: int = 0
    tenant: str = ""
    tokens: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    hit_tokens: int = 0
    reason: EndReason | None = None
    ended_ns: int | None = None

    @property
    def name(self) -> str:
        """What a simulated router calls it: clients may use an id again."""
        return f"{self.request_id}/{self.seq_id}"

    @property
    def prompt_tokens(self) -> int:
        return self.routed.prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Its text came to its end."""
        return self.reason is not None and self.reason.outcome is Outcome.FINISHED

    @property
    def gone_after_ns(self) -> int | None:
        """How long after its arrival its client ended it, or a timeout did; None: neither."""
        by_itself = self.reason is None or self.reason is EndReason.ENGINE_DIED
        if by_itself or self.is_finished or self.ended_ns is None:
            return None
        return self.ended_ns - self.at_ns


@dataclass(slots=True)
class RecordedEngine:
    """All that was recorded under one name of the membership. `stays` are [joined, left) of its
    incarnations; None: it was there in the end."""

    name: str
    joined: EngineJoined
    stays: list[tuple[int, int | None]] = field(default_factory=list)
    drained_ns: int | None = None
    reports: list[EngineReported] = field(default_factory=list)

    @property
    def only_computes_prompts(self) -> bool:
        return self.joined.role == Role.PREFILL

    @property
    def limits(self) -> Limits:
        """The limits of the engine's start, as far as recorded, with those of its last report."""
        started, joined = self.joined.started, self.joined
        found = replace(LIMITS, block_tokens=joined.block_tokens)
        if started is not None:
            found = limits_of(started)
        if not self.reports:
            return found
        last = self.reports[-1]
        if started is None:
            tokens = last.blocks_total * joined.block_tokens
            found = replace(found, blocks_total=last.blocks_total, max_model_tokens=tokens,
                            auto_budget=last.target_ns is not None)  # fmt: skip
        return replace(found, max_seqs=last.max_seqs, budget_tokens=last.budget_tokens)

    @property
    def cost(self) -> SetStepCost:
        """Its last fit."""
        fits = [one.cost for one in self.reports if one.cost is not None]
        return _as_cost(fits[-1]) if fits else ASSUMED_COST

    def slowness(self) -> list[tuple[int, float]]:
        """(from when, how much longer than by its last fit its steps took), at each report."""
        last, found = self.cost, list[tuple[int, float]]()
        for report in self.reports:
            if report.cost is None or not report.running:
                continue
            rows, context = report.decode_rows, report.context_tokens
            then_ns = _as_cost(report.cost).decode_step_ns(rows, context) * report.drift
            now_ns = last.decode_step_ns(rows, context)
            found.append((report.at_ns, then_ns / max(_LEAST_COST_NS, now_ns)))
        return found


@dataclass(slots=True)
class FleetRecord:
    """`begin_ns` is shortly before the first ask, `end_ns` at the last choice or report. `facts`
    are those of requests."""

    started: RouterStarted
    begin_ns: int
    end_ns: int
    engines: dict[str, RecordedEngine]
    asks: list[RecordedAsk]
    facts: list[RequestFact]
    link: Link

    @property
    def typical_tokens(self) -> int:
        """The middle length of an output that came to its end."""
        return median(one.tokens for one in self.asks if one.is_finished) or 1


def _as_cost(fact: StepCostSet) -> SetStepCost:
    """`around_ns` of a simulated step are in its device's time."""
    terms = {name: value for name, value in asdict(fact).items() if name not in _NOT_OF_THE_COST}
    return SetStepCost(**{**terms, "around_ns": 0})


def is_of_fleet(facts: Iterable[Fact]) -> bool:
    """Whether a gateway of a fleet wrote them: a router starts in them, before any engine."""
    begun = (fact for fact in facts if isinstance(fact, RouterStarted | EngineStarted))
    return isinstance(next(begun, None), RouterStarted)


def read_fleet(facts: Iterable[Fact]) -> FleetRecord:
    """The record of the last router. Raises FleetNotReplayable."""
    reader: _Reader | None = None
    early: list[Fact] = []
    for fact in facts:
        if isinstance(fact, RouterStarted):
            reader = _Reader(fact)
        if reader is None:
            early.append(fact)
        else:
            reader.take(fact)
    if reader is None:
        raise FleetNotReplayable("no router's start is recorded: it is not of a fleet's gateway")
    for fact in early:
        reader.early(fact)
    return reader.finish()


class _Reader:
    def __init__(self, started: RouterStarted) -> None:
        self._started = started
        self._end_ns = started.at_ns
        self._engines: dict[str, RecordedEngine] = {}
        self._asks: dict[int, RecordedAsk] = {}
        self._routed: dict[str, RequestRouted] = {}
        self._last_routed: RequestRouted | None = None
        self._last_ask: dict[str, RecordedAsk] = {}
        self._owners: dict[int, SequenceSubmitted] = {}
        self._tenants: dict[str, str] = {}
        self._facts: list[RequestFact] = []
        self._trips_ns: list[float] = []

    def early(self, fact: Fact) -> None:
        """A fact of a request that came before the router."""
        if isinstance(fact, RequestAccepted | RequestParsed | RequestTokenized):
            self._facts.append(fact)

    def take(self, fact: Fact) -> None:
        match fact:
            case EngineJoined():
                self._joined(fact)
            case EngineLeft():
                self._left(fact)
            case EngineDrainBegan() if fact.engine in self._engines:
                self._engines[fact.engine].drained_ns = fact.at_ns
            case EngineReported() if fact.engine in self._engines:
                self._engines[fact.engine].reports.append(fact)
                self._end_ns = max(self._end_ns, fact.at_ns)
            case RequestRouted():
                self._routed[fact.request_id] = self._last_routed = fact
                self._end_ns = max(self._end_ns, fact.at_ns)
            case SequenceSent():
                self._sent(fact)
            case RemoteAdmitted() if fact.seq_id in self._asks:
                self._asks[fact.seq_id].hit_tokens = fact.hit_tokens
            case TokensReceived():
                self._tokens(fact)
            case RemoteAccounted() if fact.seq_id in self._asks:
                ask = self._asks[fact.seq_id]
                ask.reason, ask.ended_ns = fact.reason, fact.at_ns
            case ClockSampled():
                there_ns = fact.node_sent_ns - fact.node_received_ns
                self._trips_ns.append(fact.at_ns - fact.sent_ns - there_ns)
            case _:
                self._request_fact(fact)

    def _request_fact(self, fact: Fact) -> None:
        if isinstance(fact, RequestAccepted):
            self._tenants[fact.request_id] = fact.tenant
        if isinstance(fact, SequenceSubmitted):
            self._owners[fact.seq_id] = fact
            if fact.seq_id in self._asks:
                self._name(self._asks[fact.seq_id])
        if isinstance(fact, RequestFact):
            self._facts.append(fact)

    def _joined(self, fact: EngineJoined) -> None:
        engine = self._engines.setdefault(fact.engine, RecordedEngine(fact.engine, fact))
        engine.joined, engine.drained_ns = fact, None
        engine.stays.append((fact.at_ns, None))

    def _left(self, fact: EngineLeft) -> None:
        engine = self._engines.get(fact.engine)
        if engine is not None and engine.stays:
            begin_ns, _ = engine.stays.pop()
            engine.stays.append((begin_ns, fact.at_ns))

    def _sent(self, fact: SequenceSent) -> None:
        """The first sequence of a request is sent in the moment of the choice. What is sent again
        because its engine was lost is no ask, nor is what has no output. A client may use the id
        of a request that has ended again."""
        routed = self._last_routed
        if routed is None or routed.at_ns != fact.at_ns:
            owner = self._owners.get(fact.seq_id)
            routed = None if owner is None else self._routed.get(owner.request_id)
        if routed is None or not routed.max_tokens:
            return
        before = self._last_ask.get(routed.request_id)
        if before is not None and before.routed is not routed and before.reason in _LOST:
            return
        ask = RecordedAsk(fact.seq_id, routed.request_id, routed, fact.at_ns)
        self._asks[fact.seq_id] = self._last_ask[routed.request_id] = ask
        self._name(ask)

    def _name(self, ask: RecordedAsk) -> None:
        owner = self._owners.get(ask.seq_id)
        if owner is not None:
            ask.request_id, ask.choice = owner.request_id, owner.choice
        ask.tenant = self._tenants.get(ask.request_id, "")

    def _tokens(self, fact: TokensReceived) -> None:
        for row in fact.rows:
            ask = self._asks.get(row.seq_id)
            if ask is not None:
                ask.tokens += row.tokens
                ask.first_ns = ask.first_ns or fact.at_ns
                ask.last_ns = fact.at_ns

    def finish(self) -> FleetRecord:
        if not self._engines:
            raise FleetNotReplayable("no engine's start is recorded: who served is not known")
        if not self._asks:
            raise FleetNotReplayable("no request was sent to an engine while it was recorded")
        first_ns = min([ask.at_ns for ask in self._asks.values()])
        return FleetRecord(
            started=self._started,
            begin_ns=max(self._started.at_ns, first_ns - _BEFORE_NS),
            end_ns=self._end_ns,
            engines=self._engines,
            asks=sorted(self._asks.values(), key=lambda ask: ask.at_ns),
            facts=self._facts,
            link=self._link(),
        )

    def _link(self) -> Link:
        """Half of a usual trip, and the usual time between two reports; whether engines tell what
        they hold."""
        gaps_ns = [
            float(after.at_ns - before.at_ns)
            for engine in self._engines.values()
            for before, after in pairwise(engine.reports)
            if after.incarnation == before.incarnation
        ]
        reports = [report for engine in self._engines.values() for report in engine.reports]
        usual, tells = Link(), any(report.prefixes is not None for report in reports)
        trip_ns, gap_ns = quantile(self._trips_ns, 0.5), quantile(gaps_ns, 0.5)
        return Link(
            delay_ns=usual.delay_ns if trip_ns is None else max(0, round(trip_ns / 2)),
            report_period_ns=usual.report_period_ns if gap_ns is None else max(1, round(gap_ns)),
            whole_each=usual.whole_each if tells else 0,
        )
