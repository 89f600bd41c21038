"""The engine loop: apply commands, plan, launch, collect, commit, record.

The loop is a pipeline of `depth` steps. At depth 1 each step is collected before the
next is planned; at depth 2 step n+1 is planned and launched before the outcome of step n
is read, so that planning overlaps computing. The hot path appends one record a step to
its lane and does nothing else for telemetry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from msgspec.structs import replace

from service.engine.adapters.orders import (
    AdapterDevice,
    Drop,
    Forget,
    NoAdapters,
    Order,
    Place,
    ReadWeights,
)
from service.engine.executor import DeviceFailure, Executor, StepFailed
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
    SetRecording,
    SetStepCost,
    Submit,
    UnloadAdapter,
    WeightsRead,
)
from service.engine.plan import Emission, Plan, StepOutcome
from service.engine.scheduler import Committed, Scheduler
from telemetry.facts.adapter_records import AdapterStage
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineIdled, RecordingSet, Row, StepRecorded
from telemetry.facts.recorder import Lane
from telemetry.facts.step_parts import DeviceTimes


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A launched plan and the stamps of its launch."""

    plan: Plan
    begin_ns: int
    planned_ns: int
    launched_ns: int
    after_idling: bool


class EngineLoop:
    """Drives one scheduler and one executor; single-threaded.

    Between steps `executor` may be replaced by one that wraps it, and back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        inbox: Inbox,
        lane: Lane,
        clock: Clock,
        depth: int = 1,
        adapters: AdapterDevice | None = None,
    ) -> None:
        assert depth >= 1, depth
        self._adapters = NoAdapters() if adapters is None else adapters
        self.scheduler = scheduler
        self.executor = executor
        self._inbox = inbox
        self._lane = lane
        self._clock = clock
        self._depth = depth
        self._in_flight: deque[_InFlight] = deque()
        self._idle = True
        self._unchecked = False
        self._stalled = False
        self._recording = True
        self._changed = False  # since the last EngineIdled

    @property
    def has_work(self) -> bool:
        """Whether calling `step` now would do anything without new commands."""
        return bool(self._in_flight) or (self.scheduler.has_live and not self._stalled)

    @property
    def in_flight(self) -> int:
        """Steps that were launched and have not been collected."""
        return len(self._in_flight)

    @property
    def wake_ns(self) -> int | None:
        """When `step` has something to do although no command came: a deadline, or the end of a
        block's time to live."""
        times_ns = (self.scheduler.next_deadline_ns, self.scheduler.prefix.next_expiry_ns)
        return min((one for one in times_ns if one is not None), default=None)

    def step(self) -> list[Emission]:
        """One iteration: launches at most one plan, commits at most one outcome."""
        begin_ns = self._clock.now_ns()
        commands = self._inbox.drain()
        if self._apply(commands, begin_ns):
            begin_ns = self._clock.now_ns()
        launched = self._launch(begin_ns)
        if self._in_flight and (len(self._in_flight) >= self._depth or not launched):
            self._collect()
            self._stalled = False
        else:
            self._stalled = not launched
        if self._carry_out_orders():
            self._stalled = False
        if self.has_work:
            self._idle = False
            return self.scheduler.take_emissions()
        self.scheduler.prefix.drop_expired(self._clock.now_ns())
        if commands or self._changed or not self._idle:
            self._note_idle()
        return self.scheduler.take_emissions()

    def apply_commands(self) -> None:
        """Apply the commands in the inbox and record their facts, without a step."""
        self._apply(self._inbox.drain(), self._clock.now_ns())

    def check_idle(self) -> None:
        """Check all state once after the loop has gone idle. Call it when the last token has been
        sent: it takes milliseconds on a large pool. Raises AssertionError."""
        if self._unchecked:
            self._unchecked = False
            self.scheduler.check()

    def _apply(self, commands: list[Command], now_ns: int) -> bool:
        """Apply commands, and what follows from them for adapters; whether that took time."""
        scheduler = self.scheduler
        for command in commands:
            match command:
                case Submit():
                    scheduler.submit(command, now_ns)
                case Cancel():
                    scheduler.cancel(command.seq_id, command.reason)
                case Pause():
                    scheduler.pause(command.seq_id)
                case Resume():
                    scheduler.resume(command.seq_id, now_ns)
                case GrammarReady():
                    scheduler.grammar_ready(command, now_ns)
                case LoadAdapter():
                    scheduler.adapters.load(command)
                case WeightsRead():
                    scheduler.adapters.weights_read(command)
                case UnloadAdapter():
                    scheduler.adapters.unload(command)
                case SetStepCost():
                    scheduler.set_step_cost(command)
                case SetLimits():
                    scheduler.set_limits(command)
                case FlushCache():
                    scheduler.flush_cache()
                case AdmitKv():
                    scheduler.remote_kv.received.admit(command)
                case FailKv():
                    scheduler.remote_kv.received.fail(command)
                case ReleaseKv():
                    scheduler.remote_kv.release(command)
                case SetRecording():
                    self._recording = command.enabled
                    self._lane.append(RecordingSet(now_ns, command.enabled))
        self._record_facts(now_ns)
        return bool(commands) and self._carry_out_orders()

    def _carry_out_orders(self) -> bool:
        """Let the device do what the core has decided about adapters; whether there was any."""
        desk = self.scheduler.adapters
        if not desk.knows_any:
            return False
        any_order = False
        while orders := desk.orders():  # what was placed may be evicted for another
            any_order = True
            for order in orders:
                self._carry_out(order)
        self._record_facts(self._clock.now_ns())
        return any_order

    def _carry_out(self, order: Order) -> None:
        match order:
            case ReadWeights():
                self._adapters.read(order.number, order.source)
            case Place():
                self._place(order.number)
            case Drop():
                self._adapters.drop(order.number)
            case Forget():
                self._adapters.forget(order.number)

    def _place(self, number: int) -> None:
        desk, begin_ns = self.scheduler.adapters, self._clock.now_ns()
        try:
            placed_bytes = self._adapters.place(number)
        except DeviceFailure as failure:
            desk.failed(number, AdapterStage.PLACE, str(failure))
            return
        now_ns = self._clock.now_ns()
        desk.placed(number, placed_bytes, now_ns - begin_ns)

    def _launch(self, begin_ns: int) -> bool:
        plan = self.scheduler.plan(begin_ns)
        planned_ns = self._clock.now_ns()
        self._record_facts(planned_ns)
        if plan.is_empty:
            return False
        self.executor.launch(plan)
        launched_ns = self._clock.now_ns()
        self._in_flight.append(_InFlight(plan, begin_ns, planned_ns, launched_ns, self._idle))
        return True

    def _collect(self) -> None:
        flight = self._in_flight.popleft()
        try:
            outcome = self.executor.collect()
        except StepFailed as error:
            collected_ns = self._clock.now_ns()
            lost = self.scheduler.fail(flight.plan, error)
            outcome = StepOutcome((), flight.launched_ns, collected_ns)
            self._record(flight, outcome, collected_ns, lost)
            return
        collected_ns = self._clock.now_ns()
        committed = self.scheduler.commit(flight.plan, outcome)
        self._record(flight, outcome, collected_ns, committed)

    def _record(
        self, flight: _InFlight, outcome: StepOutcome, collected_ns: int, committed: Committed
    ) -> None:
        scheduler, plan = self.scheduler, flight.plan
        committed_ns = self._clock.now_ns()
        if not self._recording:
            self._record_facts(committed_ns)
            return
        pool, table = scheduler.pool, scheduler.table
        queue = table.queue
        self._lane.append(
            StepRecorded(  # by position, which takes a quarter of the time that names take
                plan.step_id,
                flight.begin_ns,
                flight.planned_ns,
                flight.launched_ns,
                outcome.forward_ns,
                outcome.sample_ns,
                collected_ns,
                committed_ns,
                step_rows(plan, committed),
                plan.skips,
                plan.preempted,
                plan.budget_tokens,
                len(table.running),
                len(queue),
                queue.tokens,
                pool.used,
                pool.cached,
                pool.total,
                outcome.mask_ns,
                outcome.masked_rows,
                len(plan.copies),
                committed.sealed,
                _device_of(flight, outcome),
                outcome.rank_skew_ns,
                plan.target_ns,
                outcome.slowest_rank,
                outcome.score_ns,
            )
        )
        self._record_facts(committed_ns)

    def _record_facts(self, now_ns: int) -> None:
        for fact in self.scheduler.take_facts(now_ns):
            self._changed = True
            self._lane.append(fact)

    def _note_idle(self) -> None:
        scheduler = self.scheduler
        self._idle = self._unchecked = True
        self._changed = False
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


def _device_of(flight: _InFlight, outcome: StepOutcome) -> DeviceTimes | None:
    """Device times of a step; what passed while the engine was idle is no bubble."""
    device = outcome.device
    if device is None or not flight.after_idling:
        return device
    return replace(device, bubble_ns=None)


def step_rows(plan: Plan, committed: Committed) -> tuple[Row, ...]:
    """The rows of a plan as facts, decodes first. Arguments go by position, and each kind has its
    own loop, because one row is made for each token."""
    tokens, wasted = committed.tokens, committed.wasted
    rows = [
        Row(
            seq_id := row.seq_id,
            False,
            1 + len(row.drafts),
            row.start,
            0,
            tokens.get(seq_id, 1),
            seq_id in wasted,
        )
        for row in plan.decodes
    ]
    for chunk in plan.prefills:
        row = Row(
            chunk.seq_id,
            True,
            len(chunk.tokens),
            chunk.start,
            chunk.recompute_tokens,
            int(chunk.samples),
            chunk.seq_id in wasted,
            chunk.reads.scored_rows,
        )
        rows.append(row)
    return tuple(rows)
