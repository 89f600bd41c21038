"""A recorded fleet again, in virtual time, with prompts computed by engines of their own.

The production router chooses who generates, the production rule whether another engine computes the
prompt (`service.fleet.routing.prefill_choice`), and both go by load reports as old as they were.
Schedulers and the transfer protocol are the production ones (`lab.fleet.disaggregated`). Engines
are like the recorded ones, taken in turns; none dies or drains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import asdict, replace

from lab.fleet.disaggregated.network import LinkModel
from lab.fleet.disaggregated.node import SimNode
from lab.fleet.disaggregated.scenario import Scenario
from lab.fleet.disaggregated.world import Builds, World
from lab.fleet.recorded.change import FleetChange
from lab.fleet.recorded.record import FleetNotReplayable, FleetRecord, RecordedAsk, RecordedEngine
from lab.fleet.recorded.requests import with_requests
from lab.fleet.recorded.texts import Texts
from lab.fleet.recorded.world import RecordedFaults, length_again, limits_again
from lab.simulation.sim_executor import Cost, FittedCost, WritingExecutor
from service.engine.inbox import Cancel, Submit
from service.engine.plan import Emission, Plan, SamplingParams
from service.fleet.routing.prefill_choice import Computes, Decodes, PrefillChoice
from service.fleet.routing.request import request_of
from service.fleet.routing.router import Router
from service.fleet.routing.settings import RoutingSettings
from service.fleet.transfer.decode_side import DecodeSideSettings
from service.fleet.transfer.sending import PrefillSideSettings
from service.fleet.transfer.split import ASSUMED_DIGEST_BYTE_NS, LinkCost
from service.fleet.wire.load_fold import LoadFold
from service.fleet.wire.messages import EngineLoad
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import SequenceAdmitted
from telemetry.facts.fleet.kv_transfer_records import Way
from telemetry.facts.fleet.routing_records import EngineReported, RequestRouted
from telemetry.facts.fleet.sequence_records import (
    ReceivedRow,
    RemoteAccounted,
    RemoteAdmitted,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, SequenceSubmitted, fact_ns

_LONGEST_NS = 600_000_000_000


@dataclass(frozen=True, slots=True)
class PacedCost:
    """A cost, times how much slower the engine was at the time."""

    cost: FittedCost
    slow: Callable[[int], float]
    clock: Clock

    def step_ns(self, plan: Plan) -> int:
        return round(self.cost.step_ns(plan) * self.slow(self.clock.now_ns()))


def roles_of(record: FleetRecord, change: FleetChange) -> dict[str, RecordedEngine]:
    """The engines, by the names that they have here, each with the recorded one that it is like."""
    assert change.prefill is not None
    assert change.decode is not None
    everyone = list(record.engines.values())
    computing = [one for one in everyone if one.only_computes_prompts]
    generating = [one for one in everyone if one not in computing] or everyone
    found = {
        f"decode-{number}": generating[number % len(generating)] for number in range(change.decode)
    }
    first = 0 if computing else change.decode
    computing = computing or generating
    for number in range(change.prefill):
        found[f"prefill-{number}"] = computing[(first + number) % len(computing)]
    return found


class FleetApart(World):
    """One run. Raises ConfigError where limits cannot be, FleetNotReplayable where the size of the
    KV of a token is not recorded. `apart` prompts were computed elsewhere."""

    def __init__(self, record: FleetRecord, change: FleetChange) -> None:
        self._record, self._change = record, change
        self._like = roles_of(record, change)
        limits = limits_again(self._like["decode-0"], change)
        self._token_bytes = _token_bytes(self._like["decode-0"])
        self._faults = RecordedFaults(
            pace={name: tuple(one.slowness()) for name, one in self._like.items()}
        )
        self._texts = Texts(record.asks, limits.block_tokens)
        self._asks = {ask.seq_id: ask for ask in record.asks}
        self._open = len(record.asks)
        self.most_events = _most_events(record, len(self._like))
        self._gateway: list[Fact] = []
        self._first_ns: dict[int, int] = {}
        self._tokens: Counter[int] = Counter()
        self._is_remote: set[int] = set()
        block_bytes = self._token_bytes * limits.block_tokens
        super().__init__(
            Scenario(
                seed=0,
                asks=(),
                limits=limits,
                link=LinkModel(
                    delay_ns=record.link.delay_ns,
                    jitter_ns=0,
                    block_ns=max(1, round(block_bytes / change.link_bytes_per_ns)),
                ),
                prefills=change.prefill or 1,
                decodes=change.decode or 1,
                decode_patience=DecodeSideSettings(lease_ns=_LONGEST_NS, longest_ns=_LONGEST_NS),
                prefill_patience=PrefillSideSettings(hold_ns=_LONGEST_NS),
            ),
            Builds(executor=WritingExecutor),
        )
        self.invariants.after_iteration = lambda node: None  # type: ignore[method-assign]
        settings = change.routing(RoutingSettings.of(record.started))
        self._router = Router(settings, self._gateway.append, record.begin_ns)
        self._choice = PrefillChoice()
        self._nodes = {node.peer.name: node for node in [*self.decodes, *self.prefills]}
        self._states = {name: _Told() for name in self._nodes}
        self.events.at(record.begin_ns, self._begin)

    @property
    def apart(self) -> int:
        return len(self._is_remote)

    def replayed(self) -> list[Fact]:
        """Run it; the gateway's facts, in the order of time."""
        self.run()
        self._gateway.sort(key=fact_ns)
        return with_requests(self._record, self._gateway)

    def cost_of(self, name: str, clock: Clock) -> Cost:
        return PacedCost(FittedCost(self._like[name].cost), self._faults.slowness(name), clock)

    def _begin(self) -> None:
        for name, node in self._nodes.items():
            assert isinstance(node.executor, WritingExecutor)
            node.executor.said = self._said
            node.sync()
            node.send(self._like[name].cost)
            self._report(name)
        for node in self.decodes:
            limits = self.scenario.limits
            peer = node.peer
            self._router.joined(
                peer.name, peer.incarnation, limits.block_tokens, self.events.now_ns
            )
        for ask in self._record.asks:
            self.events.at(ask.at_ns, partial(self._ask_again, ask))

    def _said(self, seq_id: int, index: int) -> int:
        return self._texts.output(self._asks[seq_id], index)

    # Requests

    def _ask_again(self, ask: RecordedAsk) -> None:
        """A request comes to the gateway."""
        now_ns, prompt_tokens = self.events.now_ns, ask.prompt_tokens
        routed = self._router.choose(
            replace(request_of(ask.routed), request_id=ask.name, excluded=()), now_ns
        )
        assert isinstance(routed, RequestRouted), "engines that generate are there all the time"
        self._router.sent(routed)
        name, incarnation = routed.engine, routed.incarnation
        self._gateway.append(SequenceSubmitted(ask.request_id, now_ns, ask.seq_id, ask.choice))
        self._gateway.append(SequenceSent(now_ns, ask.seq_id, name, incarnation))
        cached_tokens = routed.candidates[0].cached_tokens
        here = Decodes(name, self._states[name].load, cached_tokens)
        found = self._choice.best(
            prompt_tokens, routed.anchors, here, self._computing(), routed.ttft_target_ns
        )
        peer = None
        if found is not None and found.split.way is Way.REMOTE:
            self._choice.sent_away(ask.seq_id, found, name, prompt_tokens, routed.anchors)
            self._is_remote.add(ask.seq_id)
            peer = self._nodes[found.name]
        else:
            self._choice.sent_here(name, prompt_tokens - cached_tokens)
        arrive = partial(self._arrive_at, self._nodes[name], ask, peer)
        self.events.after(self._record.link.delay_ns, arrive)
        if ask.gone_after_ns is not None:
            assert ask.reason is not None
            leave = partial(self._command, ask.seq_id, Cancel(ask.seq_id, ask.reason))
            self.events.after(ask.gone_after_ns, leave)

    def _computing(self) -> Iterator[Computes]:
        link = LinkCost(
            token_bytes=self._token_bytes,
            bytes_per_ns=self._change.link_bytes_per_ns,
            delay_ns=self._record.link.delay_ns,
            digest_byte_ns=ASSUMED_DIGEST_BYTE_NS,
        )
        for node in self.prefills:
            name = node.peer.name
            yield Computes(name, self._states[name].load, self.scenario.limits.block_tokens, link)

    def _arrive_at(self, node: SimNode, ask: RecordedAsk, peer: SimNode | None) -> None:
        """An engine gets it."""
        prompt, routed = self._texts.prompt(ask), ask.routed
        self.invariants.submitted(ask.seq_id, tuple(prompt))
        node.sync()
        told = self._states[node.peer.name]
        told.received += 1
        told.fold.submitted(ask.seq_id, len(prompt), peer is not None)
        self._live[ask.seq_id] = node
        ttft_ns = routed.ttft_target_ns
        submit = Submit(
            seq_id=ask.seq_id,
            prompt=prompt,
            max_tokens=length_again(self._record, ask),
            sampling=SamplingParams(temperature=0.0),
            tenant=ask.tenant,
            first_token_by_ns=None if ttft_ns is None else ask.at_ns + ttft_ns,
            ttft_target_ns=ttft_ns,
            itl_target_ns=routed.itl_target_ns,
        )
        if peer is None:
            node.send(submit)
        else:
            self._start_remote(node, submit, peer.peer)

    def emitted(self, node: SimNode, emissions: list[Emission]) -> None:
        """Outputs come to the gateway a delay later."""
        super().emitted(node, emissions)
        at_ns = self.events.now_ns + self._record.link.delay_ns
        rows = Counter(one.seq_id for one in emissions if one.sample is not None)
        if rows:
            received = tuple(ReceivedRow(seq_id, count) for seq_id, count in rows.items())
            self._gateway.append(TokensReceived(at_ns, node.peer.name, received))
            self._tokens.update(rows)
            for seq_id in rows:
                self._first_ns.setdefault(seq_id, at_ns)
        for one in emissions:
            if one.end is not None:
                self.events.at(at_ns, partial(self._over, node, one.seq_id, one.end))

    def _over(self, node: SimNode, seq_id: int, reason: EndReason) -> None:
        now_ns, peer, told = self.events.now_ns, node.peer, self._states[node.peer.name]
        told.ended += 1
        self._open -= 1
        self._choice.computed(seq_id)
        self._router.ended(self._asks[seq_id].name, self._tokens[seq_id], now_ns)
        first_ns = self._first_ns.get(seq_id)
        self._gateway.append(
            RemoteAccounted(now_ns, seq_id, peer.name, peer.incarnation, reason, None, first_ns)
        )

    # Reports

    def _report(self, name: str) -> None:
        """An engine says how loaded it is, and will again while anything is open."""
        node, told = self._nodes[name], self._states[name]
        fresh = node.facts[told.seen :]
        told.seen = len(node.facts)
        told.fold.take(fresh)
        self._admitted(node, fresh)
        told.number += 1
        late_ns = self._record.link.delay_ns + self._change.signal_age_ns
        made = (told.fold.load(), told.number, told.received, told.ended)
        self.events.after(late_ns, partial(self._reported, name, *made))
        if self._open:
            self.events.after(self._record.link.report_period_ns, partial(self._report, name))

    def _reported(
        self, name: str, load: EngineLoad, number: int, received: int, ended: int
    ) -> None:
        """A gateway does not know how old a report is; it knows the link (`lab.fleet.world`)."""
        node, now_ns = self._nodes[name], self.events.now_ns
        self._states[name].load = load
        self._choice.reported(name)
        if node.decode is None:
            return
        self._router.report(
            EngineReported(
                at_ns=now_ns,
                engine=name,
                incarnation=node.peer.incarnation,
                number=number,
                age_ns=self._record.link.delay_ns,
                received=received,
                ended=ended,
                **asdict(load),
            )
        )

    def _admitted(self, node: SimNode, facts: Sequence[Fact]) -> None:
        """A gateway is told by the engine that generates."""
        for fact in facts:
            if isinstance(fact, SequenceAdmitted) and node.decode is not None:
                self._choice.computed(fact.seq_id)
                self._gateway.append(
                    RemoteAdmitted(
                        fact.at_ns + self._record.link.delay_ns,
                        fact.seq_id,
                        node.peer.name,
                        fact.known_tokens,
                        fact.hit_tokens,
                        fact.ghost_tokens,
                        received_tokens=fact.received_tokens,
                    )
                )


class _Told:
    """What an engine has said of itself, and what of its facts was read for that."""

    def __init__(self) -> None:
        self.fold, self.load = LoadFold(), EngineLoad()
        self.seen = self.number = self.received = self.ended = 0


def _most_events(record: FleetRecord, engines: int) -> int:
    """More than any run has that comes to its end: some for each token, and the reports of a time
    in which each engine computes all of them one by one."""
    tokens = sum(ask.prompt_tokens + ask.routed.max_tokens for ask in record.asks)
    slowest_ns = max([engine.cost.decode_step_ns(1, 0) for engine in record.engines.values()])
    span_ns = record.end_ns - record.begin_ns + 100 * tokens * slowest_ns
    return 100 * tokens + 10 * engines * (1 + span_ns // record.link.report_period_ns)


def _token_bytes(engine: RecordedEngine) -> int:
    """The size in bytes of the KV of one token."""
    started = engine.joined.started
    if started is None or started.shape is None:
        raise FleetNotReplayable(
            "the size of the model is not recorded, so that of its KV is not known"
        )
    return started.shape.cell_bytes
