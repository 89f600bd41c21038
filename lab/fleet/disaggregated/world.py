"""Runs one scenario: engines, link, clients and faults, with a check of all invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from msgspec.structs import replace

from lab.fleet.disaggregated.events import Events
from lab.fleet.disaggregated.invariants import Invariants
from lab.fleet.disaggregated.network import Network
from lab.fleet.disaggregated.node import SimNode
from lab.fleet.disaggregated.scenario import Ask, Fault, Scenario, StateFault
from lab.simulation.evidence import require
from lab.simulation.sim_executor import Cost, SimExecutor
from service.engine.admission import Limits
from service.engine.inbox import Cancel, Pause, Resume, Submit
from service.engine.plan import Emission, SamplingParams
from service.engine.scheduler import Scheduler
from service.fleet.transfer.decode_side import DecodeSide
from service.fleet.transfer.epochs import Epochs
from service.fleet.transfer.messages import PeerId
from service.fleet.transfer.prefill_side import PrefillSide
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.requests.kv_accounts import KvPart


@dataclass(frozen=True, slots=True)
class Builds:
    """What engines are made of; a test puts broken ones in."""

    scheduler: Callable[[Limits], Scheduler] = Scheduler
    decode_side: Callable[..., DecodeSide] = DecodeSide
    prefill_side: Callable[..., PrefillSide] = PrefillSide
    executor: Callable[..., SimExecutor] = SimExecutor


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run. `hit` faults found their state; `journals` are the facts of each engine
    process, in their order."""

    seed: int
    ends: Counter[EndReason]
    hit: tuple[StateFault, ...]
    admitted: int
    landed_blocks: int
    events: int
    hidden_ns: int
    exposed_ns: int
    journals: tuple[tuple[Fact, ...], ...]


class World:
    """One run. Raises InvariantViolated."""

    most_events: int = 20_000

    def __init__(self, scenario: Scenario, builds: Builds | None = None) -> None:
        self.scenario = scenario
        self.builds = builds or Builds()
        self.random = Random(scenario.seed + 1)
        self.events = Events()
        self.invariants = Invariants()
        staged = partial(self.invariants.staged, scenario.prefill_patience.staging_bytes)
        silent = self.invariants.fenced
        self.network = Network(self.events, self.random, scenario.link, silent, staged)
        self._incarnations = 0
        self._epochs: dict[PeerId, Epochs] = {}
        self._live: dict[int, SimNode] = {}
        self._all: list[SimNode] = []
        self._seen: Counter[tuple[str, str]] = Counter()
        self._waiting = list(scenario.faults)
        self._hit: list[StateFault] = []
        self.decodes = [self._boot(f"decode-{n}", True) for n in range(scenario.decodes)]
        self.prefills = [self._boot(f"prefill-{n}", False) for n in range(scenario.prefills)]
        for seq_id, ask in enumerate(scenario.asks):
            self.events.at(ask.at_ns, partial(self._arrive, seq_id, ask))

    def run(self) -> Report:
        """Until nothing is left to happen."""
        while self.events.step():
            handled = self.events.handled
            require(9, handled < self.most_events, f"busy after {handled} events")
        self.invariants.at_end([node for node in self._all if node.alive])
        accounts = self.invariants.accounts
        return Report(
            seed=self.scenario.seed,
            ends=Counter(self.invariants.ends.values()),
            hit=tuple(self._hit),
            admitted=len(accounts),
            landed_blocks=self.invariants.landed_blocks,
            events=self.events.handled,
            hidden_ns=sum(account.hidden_ns for account in accounts),
            exposed_ns=sum(account.parts.get(KvPart.TRANSFER, 0) for account in accounts),
            journals=tuple(tuple(node.facts) for node in self._all),
        )

    # Called by engines

    def cost_of(self, name: str, clock: Clock) -> Cost:
        """What a step of an engine takes."""
        return self.scenario.cost

    def emitted(self, node: SimNode, emissions: list[Emission]) -> None:
        for emission in emissions:
            self.invariants.emitted(node, emission)
            if emission.end is not None:
                self._live.pop(emission.seq_id, None)

    def observe(self, node: SimNode) -> None:
        """Faults happen in the moment that a transfer is in their state."""
        side = "decode" if node.decode is not None else "prefill"
        for state in set(node.states):
            self._seen[side, state] += 1
        for fault in list(self._waiting):
            often = self._seen[side, fault.state] >= fault.nth
            if fault.side == side and often and fault.state in node.states:
                self._waiting.remove(fault)
                self._hit.append(fault)
                strike = partial(self._strike, fault.fault)
                self.events.after(self.random.randrange(1000), strike)

    # Requests

    def _boot(self, name: str, decodes: bool) -> SimNode:
        self._incarnations += 1
        peer = PeerId(name, self._incarnations)
        offsets = self.scenario.offsets_ns
        node = SimNode(self, peer, offsets[self._incarnations % len(offsets)], decodes)
        self._epochs[peer] = Epochs(self._incarnations)
        self._all.append(node)
        return node

    def _arrive(self, seq_id: int, ask: Ask) -> None:
        node = self.decodes[seq_id % len(self.decodes)]
        self.invariants.submitted(seq_id, ask.prompt)
        if not node.alive:
            self.invariants.ended(seq_id, EndReason.NOT_READY)
            return
        node.sync()
        now_ns = node.clock.now_ns()
        submit = Submit(
            seq_id=seq_id,
            prompt=list(ask.prompt),
            max_tokens=ask.max_tokens,
            sampling=SamplingParams(temperature=0.0),
            end_token_ids=() if ask.eos_at is None else (node.executor.token(seq_id, ask.eos_at),),
            deadline_ns=None if ask.deadline_ns is None else now_ns + ask.deadline_ns,
        )
        self._live[seq_id] = node
        self._submit(node, submit, ask.remote)
        for delay_ns, command in (
            (ask.cancel_ns, Cancel(seq_id, EndReason.DISCONNECT)),
            (ask.pause_ns, Pause(seq_id)),
            (ask.resume_ns, Resume(seq_id)),
        ):
            if delay_ns is not None:
                self.events.after(delay_ns, partial(self._command, seq_id, command))
        self.observe(node)

    def _submit(self, node: SimNode, submit: Submit, remote: bool) -> None:
        peers = [
            prefill.peer
            for prefill in self.prefills
            if not self.network.knows_gone(node.peer, prefill.peer)
        ]
        if not remote or not peers:
            node.send(submit)
            return
        self._start_remote(node, submit, peers[submit.seq_id % len(peers)])

    def _start_remote(self, node: SimNode, submit: Submit, peer: PeerId) -> None:
        """The prompt of a sequence is computed by another engine."""
        assert node.decode is not None
        receiving = replace(submit, receives_kv=self._epochs[node.peer].next())
        node.decode.start(receiving, peer)
        node.wake()

    def _command(self, seq_id: int, command: Cancel | Pause | Resume) -> None:
        node = self._live.get(seq_id)
        if node is not None:
            node.send(command)

    # Faults

    def _strike(self, fault: Fault) -> None:
        now_ns, random = self.events.now_ns, self.random
        match fault:
            case Fault.KILL_DECODE:
                self._kill(self.decodes)
            case Fault.KILL_PREFILL:
                self._kill(self.prefills)
            case Fault.FREEZE_DECODE:
                self.decodes[0].freeze(now_ns + random.randrange(6_000_000_000))
            case Fault.FREEZE_PREFILL:
                self.prefills[0].freeze(now_ns + random.randrange(20_000_000_000))
            case Fault.CANCEL:
                for seq_id in list(self._live):
                    self._command(seq_id, Cancel(seq_id, EndReason.DISCONNECT))
            case Fault.PAUSE:
                for seq_id in list(self._live):
                    self._command(seq_id, Pause(seq_id))
                    resume = partial(self._command, seq_id, Resume(seq_id))
                    self.events.after(random.randrange(4_000_000_000), resume)
            case Fault.STALL:
                self.network.stalls.append((now_ns, now_ns + random.randrange(8_000_000_000)))
            case Fault.CUT:
                self.network.cut(self.decodes[0].peer, self.prefills[0].peer)

    def _kill(self, group: list[SimNode]) -> None:
        """The first of a group dies, and another takes its place later."""
        node = group[0]
        if not node.alive:
            return
        node.alive = False
        for other in self._all:
            if other is not node:
                self.network.cut(node.peer, other.peer)
        for seq_id in [seq_id for seq_id, owner in self._live.items() if owner is node]:
            del self._live[seq_id]
            self.invariants.ended(seq_id, EndReason.ENGINE_DIED)
        self.events.after(self.scenario.restart_ns, partial(self._restart, group))

    def _restart(self, group: list[SimNode]) -> None:
        old = group[0]
        group[0] = self._boot(old.peer.name, old.decode is not None)
