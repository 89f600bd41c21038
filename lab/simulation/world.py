"""A whole engine in virtual time: the production loop and scheduler, a simulated device,
clients that arrive, pause and disconnect, and a check of all invariants after each step.

A run is a function of its scenario: same scenario, same journal, byte for byte.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from lab.simulation.evidence import InvariantViolated
from lab.simulation.faults import Faults, FaultyDevice
from lab.simulation.invariants import Invariants
from lab.simulation.sim_adapters import KnownAdapters, SimAdapter, SimAdapters
from lab.simulation.sim_executor import LinearCost, SimExecutor, WrongContents
from lab.simulation.watched import Watched
from lab.simulation.workload import Arrival
from service.engine.admission import Limits
from service.engine.inbox import (
    AdmitKv,
    Cancel,
    Command,
    FailKv,
    FlushCache,
    GrammarReady,
    Inbox,
    LoadAdapter,
    Pause,
    ReleaseKv,
    Resume,
    SetLimits,
    SetStepCost,
    Submit,
    UnloadAdapter,
    WeightsRead,
)
from service.engine.limits_record import record_of
from service.engine.loop import EngineLoop
from service.engine.plan import Grammar, GrammarKind, Plan, SamplingParams
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import ManualClock, WallAnchor
from telemetry.facts.engine_records import EngineStarted, SequenceEnded
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import EngineDied, Fact

_OVERHEAD_NS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on. With `knows_cost` each engine knows from its start what
    steps take, as from a warm-up."""

    name: str
    seed: int
    limits: Limits
    arrivals: tuple[Arrival, ...]
    depth: int = 1
    cost: LinearCost = field(default_factory=LinearCost)
    faults: Faults = field(default_factory=Faults)
    commands: tuple[tuple[int, Command], ...] = ()
    period: int | None = None
    knows_cost: bool = False
    adapters: tuple[SimAdapter, ...] = ()

    @property
    def steady_cost(self) -> LinearCost | None:
        """What each of its steps takes; None where some are slow by chance."""
        slow = self.faults.slow_chance or self.faults.slow_intervals
        return None if slow else self.cost


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run. `journal` is every fact, encoded, in the order of the lane."""

    steps: int
    sequences: int
    virtual_ns: int
    ends: dict[EndReason, int]
    facts: tuple[Fact, ...]
    journal: bytes

    @property
    def digest(self) -> str:
        return hashlib.blake2b(self.journal, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class _Restart:
    """The engine process dies and is replaced."""


@dataclass(frozen=True, slots=True)
class _WallJump:
    delta_ns: int


@dataclass(frozen=True, slots=True)
class _Stall:
    """The loop stands still between two steps."""

    length_ns: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """A command of a part of one engine's process."""

    inbox: Inbox
    command: Command


_Event = _Answer | Command | Arrival | _Restart | _WallJump | _Stall


class World:
    """Runs one scenario. `make_scheduler` lets a test put a broken one in."""

    def __init__(
        self, scenario: Scenario, make_scheduler: Callable[[Limits], Scheduler] = Scheduler
    ) -> None:
        self.scenario = scenario
        self.clock = ManualClock()
        self.wall = WallAnchor(monotonic_ns=0, unix_ns=1_700_000_000_000_000_000)
        self._make_scheduler = make_scheduler
        self._device = FaultyDevice(scenario.seed, scenario.faults, scenario.cost, self.clock)
        self._facts: list[Fact] = []
        self._events: list[tuple[int, int, _Event]] = []
        self._next_seq_id = 0
        self._orders = 0
        self._boot()
        self.invariants = Invariants(self.scheduler, scenario.steady_cost)
        self._tell_cost()
        self._schedule_all()

    def run(self, limit_steps: int = 200_000) -> Report:
        """Run until no work and no event is left. Raises InvariantViolated."""
        steps = 0
        while True:
            self._deliver()
            if self._has_something():
                self._iterate()
                steps += 1
                if steps > limit_steps:
                    raise InvariantViolated(1, f"still busy after {limit_steps} steps")
                continue
            next_ns = self._next_event_ns()
            if next_ns is None:
                break
            self.clock.advance(max(0, next_ns - self.clock.now_ns()))
        self.invariants.at_end()
        return self._report(steps)

    def _iterate(self) -> None:
        try:
            emissions = self.loop.step()
        except WrongContents as error:
            raise InvariantViolated(4, str(error)) from error
        self.clock.advance(_OVERHEAD_NS)
        facts = self.lane.drain()
        self._facts += facts
        for fact in facts:
            self._known.take(fact)
        self.invariants.emitted(emissions, self.executor.token)
        self.invariants.after_step(facts)

    def _has_something(self) -> bool:
        wake_ns = self.loop.wake_ns
        due = wake_ns is not None and wake_ns <= self.clock.now_ns()
        return self.loop.has_work or len(self.inbox) > 0 or due

    def _next_event_ns(self) -> int | None:
        times = [at_ns for at_ns in (self.loop.wake_ns,) if at_ns is not None]
        if self._events:
            times.append(self._events[0][0])
        return min(times, default=None)

    def _boot(self) -> None:
        scenario = self.scenario
        self.scheduler = self._make_scheduler(scenario.limits)
        self.inbox, self.lane = Inbox(), Lane(1 << 30)
        self.executor = SimExecutor(
            self.clock,
            scenario.limits.blocks_total,
            scenario.limits.block_tokens,
            cost=self._device,
            fails=self._device.fails,
            on_read=lambda reader, writer: self.invariants.read(reader, writer),
            period=scenario.period,
        )
        by_name = {adapter.name: adapter for adapter in scenario.adapters}
        device = self._adapters = SimAdapters(self.clock, by_name, self._to_engine(self.inbox))
        self._known = KnownAdapters()
        watched = Watched(self.executor, self._launched, device.collected)
        self.loop = EngineLoop(
            self.scheduler, watched, self.inbox, self.lane, self.clock, scenario.depth, device
        )
        for adapter in scenario.adapters:
            self.inbox.put(adapter.load)
        self._facts.append(_started(scenario, self.clock.now_ns()))

    def _to_engine(self, inbox: Inbox) -> Callable[[int, Command], None]:
        """Delivers commands to this engine; nothing if another has taken its place."""

        def send_at(at_ns: int, command: Command) -> None:
            self._at(at_ns, _Answer(inbox, command))

        return send_at

    def _launched(self, plan: Plan) -> None:
        if self.scenario.adapters:
            self.clock.advance(1)  # a load may outlast a step: its stamps stay in order
        self.invariants.planned(plan, self.clock.now_ns())
        self._adapters.launched(plan.step_id, self.invariants.adapters_of(plan))

    def _tell_cost(self) -> None:
        """The first command of an engine that has measured steps in its warm-up."""
        if self.scenario.knows_cost:
            self._put_cost(self.scenario.cost.as_fitted())

    def _put_cost(self, command: SetStepCost) -> None:
        self.invariants.slo.told_cost(command)
        self.inbox.put(command)

    def _schedule_all(self) -> None:
        for arrival in self.scenario.arrivals:
            self._at(arrival.at_ns, arrival)
        for at_ns, command in self.scenario.commands:
            self._at(at_ns, command)
        for at_ns in self.scenario.faults.restarts_ns:
            self._at(at_ns, _Restart())
        for at_ns, delta_ns in self.scenario.faults.wall_jumps:
            self._at(at_ns, _WallJump(delta_ns))
        for at_ns, length_ns in self.scenario.faults.stalls:
            self._at(at_ns, _Stall(length_ns))

    def _at(self, at_ns: int, event: _Event) -> None:
        self._orders += 1
        heapq.heappush(self._events, (at_ns, self._orders, event))

    def _deliver(self) -> None:
        """Apply all due events, between two steps, as in production."""
        while self._events and self._events[0][0] <= self.clock.now_ns():
            _, _, event = heapq.heappop(self._events)
            match event:
                case Arrival():
                    self._arrive(event)
                case _Restart():
                    self._restart()
                case _WallJump():
                    unix_ns = self.wall.unix_ns + event.delta_ns
                    self.wall = WallAnchor(self.wall.monotonic_ns, unix_ns)
                case _Stall():
                    self.clock.advance(event.length_ns)
                case _Answer():
                    event.inbox.put(event.command)
                case Cancel() | Pause() | Resume() | GrammarReady() | Submit():
                    self.inbox.put(event)
                case LoadAdapter() | WeightsRead() | UnloadAdapter():
                    self.inbox.put(event)
                case SetStepCost():
                    self._put_cost(event)
                case SetLimits() | FlushCache() | AdmitKv() | FailKv() | ReleaseKv():
                    self.inbox.put(event)

    def _arrive(self, arrival: Arrival) -> None:
        adapter = self._known.number_of(arrival.adapter)
        if adapter is None:
            return  # the gateway does not know that name
        seq_id = self._next_seq_id
        self._next_seq_id += 1
        now_ns = self.clock.now_ns()
        self.invariants.submitted(seq_id, arrival, now_ns, adapter)
        constrained, ttft_ns = arrival.grammar_ns is not None, arrival.ttft_target_ns
        self.inbox.put(
            Submit(
                seq_id=seq_id,
                prompt=list(arrival.prompt),
                max_tokens=arrival.max_tokens,
                sampling=SamplingParams(temperature=0.0),
                tenant=arrival.tenant,
                priority=arrival.priority,
                deadline_ns=None if arrival.deadline_ns is None else now_ns + arrival.deadline_ns,
                cache_salt=arrival.cache_salt,
                cache_prefix=arrival.cache_prefix,
                end_token_ids=self._end_tokens(seq_id, arrival),
                min_tokens=min(arrival.min_tokens, arrival.max_tokens),
                grammar=Grammar(GrammarKind.REGEX, "x*") if constrained else None,
                first_token_by_ns=None if ttft_ns is None else now_ns + ttft_ns,
                ttft_target_ns=ttft_ns,
                itl_target_ns=arrival.itl_target_ns,
                adapter=adapter,
            )
        )
        if arrival.cancel_ns is not None:
            self._at(now_ns + arrival.cancel_ns, Cancel(seq_id, EndReason.DISCONNECT))
        if arrival.pause_ns is not None:
            self._at(now_ns + arrival.pause_ns, Pause(seq_id))
        if arrival.resume_ns is not None:
            self._at(now_ns + arrival.resume_ns, Resume(seq_id))
        if arrival.grammar_ns is not None:
            error = "refused" if arrival.grammar_refused else None
            ready = GrammarReady(seq_id, arrival.grammar_ns, False, error)
            self._at(now_ns + arrival.grammar_ns, ready)

    def _end_tokens(self, seq_id: int, arrival: Arrival) -> tuple[int, ...]:
        return () if arrival.eos_at is None else (self.executor.token(seq_id, arrival.eos_at),)

    def _restart(self) -> None:
        """The engine dies: all live sequences end, and a new engine starts."""
        now_ns = self.clock.now_ns()
        self._facts.append(EngineDied(now_ns, -9, "ended by signal 9", 0))
        self._boot()
        self.invariants.restarted(self.scheduler)
        self._tell_cost()

    def _report(self, steps: int) -> Report:
        ends: dict[EndReason, int] = {}
        for fact in self._facts:
            if isinstance(fact, SequenceEnded):
                ends[fact.reason] = ends.get(fact.reason, 0) + 1
        encoder = msgspec.msgpack.Encoder()
        journal = b"".join(encoder.encode(fact) for fact in self._facts)
        return Report(
            steps=steps,
            sequences=self._next_seq_id,
            virtual_ns=self.clock.now_ns(),
            ends=ends,
            facts=tuple(self._facts),
            journal=journal,
        )


def _started(scenario: Scenario, at_ns: int) -> EngineStarted:
    return EngineStarted(
        at_ns=at_ns,
        pid=0,
        model="simulated",
        backend="simulated",
        dtype="none",
        pipeline_depth=scenario.depth,
        **record_of(scenario.limits),
    )
