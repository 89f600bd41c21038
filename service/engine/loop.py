"""The engine loop: apply commands, plan, launch, collect, commit, record.

The loop is a pipeline of `depth` steps. At depth 1 each step is collected before the
next is planned; at depth 2 step n+1 is planned and launched before the outcome of step n
is read, so that planning overlaps computing. The hot path appends one record a step to
its lane and does nothing else for telemetry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from service.engine.executor import Executor, StepFailed
from service.engine.inbox import Cancel, Command, Inbox, Submit
from service.engine.plan import Emission, Plan
from service.engine.scheduler import Scheduler
from telemetry.clock import Clock
from telemetry.recorder import Lane
from telemetry.records import EngineIdled, Row, StepRecorded


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A launched plan and the stamps of its launch."""

    plan: Plan
    begin_ns: int
    planned_ns: int
    launched_ns: int


class EngineLoop:
    """Drives one scheduler and one executor; single-threaded."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        inbox: Inbox,
        lane: Lane,
        clock: Clock,
        depth: int = 1,
    ) -> None:
        assert depth >= 1, depth
        self.scheduler = scheduler
        self._executor = executor
        self._inbox = inbox
        self._lane = lane
        self._clock = clock
        self._depth = depth
        self._in_flight: deque[_InFlight] = deque()
        self._idle = True

    @property
    def has_work(self) -> bool:
        """Whether calling `step` now would do anything without new commands."""
        return self.scheduler.has_live or bool(self._in_flight)

    def step(self) -> list[Emission]:
        """One turn: launches at most one plan, commits at most one outcome."""
        begin_ns = self._clock.now_ns()
        commands = self._inbox.drain()
        self._apply(commands, begin_ns)
        launched = self._launch(begin_ns)
        if self._in_flight and (len(self._in_flight) >= self._depth or not launched):
            self._collect()
        if self.has_work:
            self._idle = False
        elif commands or not self._idle:
            self._note_idle()
        return self.scheduler.take_emissions()

    def _apply(self, commands: list[Command], now_ns: int) -> None:
        for command in commands:
            match command:
                case Submit():
                    self.scheduler.submit(command)
                case Cancel():
                    self.scheduler.cancel(command.seq_id, command.reason)
        self._record_facts(now_ns)

    def _launch(self, begin_ns: int) -> bool:
        plan = self.scheduler.plan()
        if plan.is_empty:
            return False
        planned_ns = self._clock.now_ns()
        self._executor.launch(plan)
        launched_ns = self._clock.now_ns()
        self._in_flight.append(_InFlight(plan, begin_ns, planned_ns, launched_ns))
        return True

    def _collect(self) -> None:
        flight = self._in_flight.popleft()
        try:
            outcome = self._executor.collect()
        except StepFailed:
            collected_ns = self._clock.now_ns()
            lost = self.scheduler.fail(flight.plan)
            self._record(flight, flight.launched_ns, collected_ns, collected_ns, lost)
            return
        collected_ns = self._clock.now_ns()
        wasted = self.scheduler.commit(flight.plan, outcome)
        self._record(flight, outcome.forward_ns, outcome.sample_ns, collected_ns, wasted)

    def _record(
        self,
        flight: _InFlight,
        forward_ns: int,
        sample_ns: int,
        collected_ns: int,
        wasted: frozenset[int],
    ) -> None:
        scheduler, plan = self.scheduler, flight.plan
        committed_ns = self._clock.now_ns()
        self._lane.append(
            StepRecorded(
                step_id=plan.step_id,
                begin_ns=flight.begin_ns,
                planned_ns=flight.planned_ns,
                launched_ns=flight.launched_ns,
                forward_ns=forward_ns,
                sample_ns=sample_ns,
                collected_ns=collected_ns,
                committed_ns=committed_ns,
                rows=step_rows(plan, wasted),
                skips=plan.skips,
                preempted=plan.preempted,
                budget_tokens=plan.budget_tokens,
                running=scheduler.running,
                waiting=scheduler.waiting,
                waiting_tokens=scheduler.waiting_tokens,
                blocks_used=scheduler.pool.used,
                blocks_cached=scheduler.pool.cached,
                blocks_total=scheduler.pool.total,
            )
        )
        self._record_facts(committed_ns)

    def _record_facts(self, now_ns: int) -> None:
        for fact in self.scheduler.take_facts(now_ns):
            self._lane.append(fact)

    def _note_idle(self) -> None:
        scheduler = self.scheduler
        scheduler.check()
        self._idle = True
        self._lane.append(
            EngineIdled(
                at_ns=self._clock.now_ns(),
                running=scheduler.running,
                waiting=scheduler.waiting,
                blocks_used=scheduler.pool.used,
                blocks_cached=scheduler.pool.cached,
                blocks_total=scheduler.pool.total,
            )
        )


def step_rows(plan: Plan, wasted: frozenset[int]) -> tuple[Row, ...]:
    """The rows of a plan as facts, decodes first."""
    decodes = [
        Row(row.seq_id, False, 1, row.start, 0, True, row.seq_id in wasted) for row in plan.decodes
    ]
    chunks = [
        Row(
            seq_id=chunk.seq_id,
            is_prefill=True,
            tokens=len(chunk.tokens),
            context_tokens=chunk.start,
            recompute_tokens=chunk.recompute_tokens,
            sampled=chunk.samples,
            wasted=chunk.seq_id in wasted,
        )
        for chunk in plan.prefills
    ]
    return (*decodes, *chunks)
