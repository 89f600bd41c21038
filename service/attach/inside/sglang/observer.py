"""Makes facts of what SGLang's scheduler did. One object a process; its methods raise nothing.

A step is a batch with at least one sequence, from the moment `get_next_batch_to_run` was entered
until `process_batch_result` returned. With the overlap schedule, SGLang's default, the next step is
planned and launched before the outcome of this one is read. All methods run on the scheduler's
loop, but `listing` and `is_resting` (the thread that sends).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from service.attach.inside.guard import Guard, guarded
from service.attach.inside.sglang.ends import abort_reason, end_reason
from service.attach.inside.sglang.live import Flight, Live, committed_row, planned_rows
from service.attach.inside.sglang.sequences import Sequences
from service.attach.inside.sglang.start import budget_tokens, draft_tokens, engine_started
from service.attach.inside.sglang.steps import engine_idled, step_recorded
from service.attach.inside.sglang.waits import skips
from service.attach.inside.transport import Listing, Sender
from telemetry.facts.clock import Clock, MonotonicClock
from telemetry.facts.reasons import EndReason

_MOST_FLIGHTS = 64


class Observer:
    """The live sequences and the steps in flight of one scheduler."""

    def __init__(
        self,
        scheduler: Any,
        make_sender: Callable[[Callable[[], Listing], Callable[[], bool]], Sender],
        clock: Clock | None = None,
    ) -> None:
        self.is_on = True
        self.now_ns = (clock or MonotonicClock()).now_ns
        self._scheduler = scheduler
        self._budget_tokens, self._draft_tokens = budget_tokens(scheduler), draft_tokens(scheduler)
        self._guards: dict[str, Guard] = {}
        self._planned: Flight | None = None
        self._flights: deque[Flight] = deque(maxlen=_MOST_FLIGHTS)
        self._current: Flight | None = None
        self._received_ns: int | None = None
        self._adding: Any = None
        self._is_new = self._refused = self._is_idle = False
        self._abort_reason: EndReason | None = None
        self._sender = make_sender(self.listing, self.is_resting)
        self._sequences = Sequences(self._sender)

    def begin(self, version: str) -> None:
        """The scheduler enters its loop. Raises if it is not as it is expected to be."""
        self._sender.started(engine_started(self._scheduler, version, self.now_ns()))
        self._note_idle(self.now_ns())

    def guard_of(self, hook: str, is_vital: bool) -> Guard:
        guard = self._guards.get(hook)
        if guard is None:
            guard = self._guards[hook] = Guard(hook, self._turn_off, is_vital=is_vital)
        return guard

    def listing(self) -> Listing:
        """Every live sequence, for the thread that sends."""
        return self._sequences.listing(self.now_ns())

    def is_resting(self) -> bool:
        """Whether the loop waits although sequences are live: the engine is paused. For the thread
        that sends."""
        try:
            return bool(self._scheduler._engine_paused)
        except Exception:
            return False

    def close(self) -> None:
        """The scheduler's loop has ended: what waits is sent."""
        self.is_on = False
        self._sender.close(0.5)

    @guarded("process_input_requests", is_vital=False)
    def received(self, messages: Any) -> None:
        """Messages were taken from the socket at the top of the loop."""
        if messages:
            self._received_ns = self.now_ns()

    @guarded("process_req_with_grammar")
    def awaits_grammar(self, at_ns: int, request: Any) -> None:
        """The request waits for its grammar before it comes into the queue."""
        self._enqueue(at_ns, request, awaits_grammar=True)

    @guarded("_add_request_to_queue")
    def adding(self, request: Any) -> None:
        self._adding, self._refused = request, False
        self._is_new = self._sequences.known(request) is None

    @guarded("_add_request_to_queue")
    def added(self, at_ns: int, request: Any) -> None:
        """The request is in the waiting queue: for the first time, after its grammar was compiled,
        or after a preemption. Or the queue did not take it."""
        self._adding = None
        live = self._sequences.known(request)
        if self._refused:
            if self._is_new:
                self._refuse(at_ns, request)
        elif live is None:
            self._enqueue(at_ns, request, awaits_grammar=False)
        elif live.awaits_grammar:
            self._sequences.compiled(live, at_ns)
        elif not live.is_waiting:
            self._sequences.preempt(live)

    @guarded("_release_aborted_request")
    def released(self, request: Any) -> None:
        """The request leaves without another step."""
        live = self._sequences.known(request)
        self._refused = self._refused or request is self._adding
        if live is None:
            return
        reason = self._abort_reason or live.abort_reason
        if reason is None and self._adding is not None:
            reason = EndReason.QUEUE_FULL  # for itself, or as one with a higher priority came
        self._sequences.end(live, reason or EndReason.DISCONNECT, self.now_ns())

    @guarded("abort_request")
    def aborting(self, abort: Any) -> None:
        self._abort_reason = abort_reason(abort)

    @guarded("abort_request")
    def aborted(self) -> None:
        """Note which live requests were aborted: those that run will end with their next
        outcome."""
        reason, self._abort_reason = self._abort_reason, None
        pending = self._scheduler._pending_chunked_abort_req
        for live in self._sequences.live.values():
            request = live.request
            if live.abort_reason is None and (request.to_finish is not None or request is pending):
                live.abort_reason = reason
        self._note_idle(self.now_ns())

    @guarded("retract_decode")
    def retracted(self, outcome: tuple[Any, Any, Iterable[Any]]) -> None:
        """The last of the outcome are sequences that cannot go on with the memory there is. Those
        that were only preempted come back through the queue."""
        now_ns = self.now_ns()
        for request in outcome[2]:
            if (live := self._sequences.known(request)) is not None:
                self._end(live, now_ns)

    @guarded("get_next_batch_to_run")
    def planned(self, begin_ns: int, plan: Any) -> None:
        planned_ns, batch = self.now_ns(), plan.batch_to_run
        scheduler, sequences, live = self._scheduler, self._sequences, self._sequences.live
        self._sender.turn_ns = planned_ns if live else None
        if batch is None or not batch.reqs:
            self._note_idle(planned_ns)
            return
        rows = planned_rows(batch, live, scheduler.chunked_req, self._draft_tokens)
        for row in rows:
            if row.live.is_waiting:
                sequences.admit(row.live, begin_ns, row.context_tokens)
        self._planned = Flight(
            batch,
            sequences.step_id,
            begin_ns,
            planned_ns,
            rows,
            skips(scheduler, plan, rows, live, self._budget_tokens),
            tuple(sequences.preempted),
            self._budget_tokens,
        )
        sequences.preempted.clear()
        sequences.step_id += 1

    @guarded("run_batch")
    def launching(self, batch: Any) -> None:
        flight = self._planned
        if flight is not None and flight.batch is batch:
            flight.launched_ns = self.now_ns()

    @guarded("run_batch")
    def launched(self, batch: Any, result: Any) -> None:
        flight, self._planned = self._planned, None
        if flight is not None and flight.batch is batch and result is not None:
            flight.batch, flight.result = None, result
            self._flights.append(flight)

    @guarded("process_batch_result")
    def processing(self, result: Any) -> None:
        self._current = None
        for flight in self._flights:
            if flight.result is result:
                self._current = flight
                self._flights.remove(flight)
                return

    @guarded("collected", is_vital=False)
    def collected(self) -> None:
        """The tokens of the step that is being processed are on the host."""
        flight = self._current
        if flight is not None and not flight.collected_ns:
            flight.collected_ns = self.now_ns()

    @guarded("process_batch_result")
    def processed(self, entered_ns: int) -> None:
        committed_ns = self.now_ns()
        flight, self._current = self._current, None
        if flight is None:
            return
        flight.collected_ns = flight.collected_ns or entered_ns
        rows = tuple([committed_row(row) for row in flight.rows])
        ended = [
            row.live
            for row in flight.rows
            if row.live.request.finished_reason is not None and not row.live.has_ended
        ]
        sequences = self._sequences
        running = len(sequences.live) - sequences.waiting - len(ended)
        self._sender.append(
            step_recorded(
                flight,
                self._scheduler,
                rows,
                committed_ns,
                running,
                sequences.waiting,
                sequences.waiting_tokens,
            )
        )
        for live in ended:
            self._end(live, committed_ns)
        self._sender.turn_ns = committed_ns
        self._note_idle(committed_ns)

    def _turn_off(self, hook: str, reason: str, is_all: bool) -> None:
        if is_all:
            self.is_on = False
            self._sequences.live.clear()
            self._flights.clear()
        self._sender.turn_off(hook, reason, is_all=is_all)

    def _enqueue(self, at_ns: int, request: Any, *, awaits_grammar: bool) -> None:
        self._is_idle = False
        self._sequences.enqueue(request, at_ns, self._received_ns, awaits_grammar=awaits_grammar)
        self._sender.turn_ns = at_ns

    def _refuse(self, at_ns: int, request: Any) -> None:
        most = self._scheduler.max_queued_requests
        is_full = most is not None and len(self._scheduler.waiting_queue) >= most
        reason = EndReason.QUEUE_FULL if is_full else EndReason.INVALID
        self._sequences.refuse(request, at_ns, reason)

    def _end(self, live: Live, at_ns: int) -> None:
        """A sequence with a finish reason of SGLang's."""
        reason = end_reason(live.request, live.abort_reason, int(self._scheduler.max_req_len))
        self._sequences.end(live, reason, at_ns)

    def _note_idle(self, at_ns: int) -> None:
        if self._sequences.live or self._flights or self._planned is not None:
            return
        self._sender.turn_ns = None
        if not self._is_idle:
            self._is_idle = True
            self._sender.append(engine_idled(self._scheduler, at_ns))
