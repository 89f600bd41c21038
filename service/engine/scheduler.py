"""The scheduler: who computes what in the next step.

Pure: commands and outcomes go in; plans, emissions and facts come out. Decodes come
first, so a prompt can never stop them; prefill chunks of running sequences and then new
admissions fill what is left of the token budget (the stall-free batching of
Sarathi-Serve, Agrawal et al., OSDI 2024). First come, first served; when blocks run out
the youngest running sequence is preempted, its blocks are freed, and it is recomputed
when it gets its turn again at the head of the queue.

Steps may overlap: `plan` can be called before the last plan's outcome is committed.
Then counts such as `in_flight_samples` speak of what has been launched, and a row whose
request ended meanwhile is dropped at commit. Freed blocks and slots may be reused at
once, because the executor runs steps in order.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from service.engine.admission import Limits, fits, refusal
from service.engine.blocks import BlockPool, blocks_for
from service.engine.inbox import Submit
from service.engine.plan import (
    DecodeRow,
    Emission,
    Plan,
    PrefillChunk,
    SlotStart,
    StepOutcome,
)
from service.engine.request import Request, Status
from service.engine.stopping import end_after, may_grow
from telemetry.records import EndReason, Fact, SequenceEnded, SequenceQueued, Skip, WaitReason


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    budget_left: int
    decodes: list[DecodeRow] = field(default_factory=list)
    prefills: list[PrefillChunk] = field(default_factory=list)
    started: list[SlotStart] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)


class Scheduler:
    """Owns every live request; the block pool owns the blocks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.blocks_total)
        self._live: dict[int, Request] = {}
        self._waiting: OrderedDict[int, Request] = OrderedDict()
        self._running: list[Request] = []
        self._free_slots = list(range(limits.max_seqs - 1, -1, -1))
        self._stopped_slots: list[int] = []
        self._news: list[tuple[Request, EndReason | None]] = []
        self._emissions: list[Emission] = []
        self._next_step_id = 0
        self.waiting_tokens = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_live(self) -> bool:
        return bool(self._live)

    # Commands

    def submit(self, command: Submit) -> None:
        """Queue a request, or end it at once with the reason of its refusal."""
        assert command.seq_id not in self._live, f"sequence {command.seq_id} submitted twice"
        request = Request(command)
        reason = refusal(self.limits, len(command.prompt), self.waiting, self.waiting_tokens)
        if reason is not None:
            self._report_end(request, reason)
            return
        self._live[command.seq_id] = request
        self._enqueue(request, first=False)
        self._news.append((request, None))

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        """End a sequence; one that is unknown or has ended already is left alone."""
        request = self._live.get(seq_id)
        if request is not None:
            self._end(request, reason)

    # One step

    def plan(self) -> Plan:
        """Decide the next step. An empty plan is not to be launched."""
        draft = _Draft(budget_left=self.limits.step_tokens)
        self._plan_decodes(draft)
        self._plan_chunks(draft)
        self._admit(draft)
        return self._finish(draft)

    def commit(self, plan: Plan, outcome: StepOutcome) -> frozenset[int]:
        """Book the outcome of a launched plan; returns the sequences whose token was wasted."""
        rows = plan.sampled_rows
        assert len(rows) == len(outcome.samples), f"{len(rows)} rows, {len(outcome.samples)} tokens"
        wasted: set[int] = set()
        for row, sample in zip(rows, outcome.samples, strict=True):
            request = self._live.get(row.seq_id)
            if request is None:
                wasted.add(row.seq_id)
                continue
            assert row.output_index == len(request.outputs), f"{row.seq_id}: token out of order"
            request.in_flight_samples -= 1
            request.outputs.append(sample.token_id)
            if request.status is Status.WAITING:
                self.waiting_tokens += 1
            reason = end_after(request, self.limits.max_model_tokens)
            self._emissions.append(Emission(request.seq_id, sample, reason))
            if reason is not None:
                self._end(request, reason, emit=False)
        return frozenset(wasted)

    def fail(self, plan: Plan) -> frozenset[int]:
        """The plan could not be computed: its sequences end, the others go on."""
        for row in plan.rows:
            self.cancel(row.seq_id, EndReason.EXECUTOR_ERROR)
        return frozenset(row.seq_id for row in plan.rows)

    # What is to be told

    def take_facts(self, now_ns: int) -> list[Fact]:
        """What happened to requests since the last call, stamped with the present."""
        news, self._news = self._news, []
        return [self._fact(request, reason, now_ns) for request, reason in news]

    def take_emissions(self) -> list[Emission]:
        taken, self._emissions = self._emissions, []
        return taken

    def check(self) -> None:
        """Walk all bookkeeping; raises AssertionError with the numbers when it is wrong."""
        self.pool.check(request.blocks for request in self._live.values())
        assert len(self._live) == self.running + self.waiting, "a live request is nowhere"
        slots = [request.slot for request in self._running]
        assert len(set(slots)) == len(slots), "two sequences share a slot"
        assert len(self._free_slots) + len(slots) == self.limits.max_seqs, "a slot is lost"
        tokens = sum(request.known_tokens for request in self._waiting.values())
        assert tokens == self.waiting_tokens, f"{tokens} tokens wait, {self.waiting_tokens} counted"

    # The parts of plan()

    def _plan_decodes(self, draft: _Draft) -> None:
        for request in list(self._running):
            if request.status is not Status.RUNNING or request.in_prefill:
                continue
            if not may_grow(request, self.limits.max_model_tokens):
                continue  # its last token is in flight
            if not self._grow(request, draft):
                continue
            assert request.slot is not None
            draft.decodes.append(
                DecodeRow(
                    seq_id=request.seq_id,
                    slot=request.slot,
                    start=request.computed_tokens,
                    blocks=request.blocks,
                    output_index=request.next_output_index,
                )
            )
            request.advance(1)
            request.in_flight_samples += 1
            draft.budget_left -= 1

    def _grow(self, request: Request, draft: _Draft) -> bool:
        """Room for one more token; may preempt the youngest, in the end the request itself."""
        needed = blocks_for(request.computed_tokens + 1, self.limits.block_tokens)
        missing = needed - len(request.blocks)
        while missing > self.pool.free:
            victim = self._running[-1]
            self._preempt(victim, draft)
            if victim is request:
                return False
        request.blocks.extend(self.pool.allocate(missing))
        return True

    def _plan_chunks(self, draft: _Draft) -> None:
        for request in self._running:
            if request.in_prefill and not self._add_chunk(request, draft):
                draft.skips.append(Skip(request.seq_id, WaitReason.BUDGET, None))

    def _admit(self, draft: _Draft) -> None:
        while self._waiting:
            request = next(iter(self._waiting.values()))
            reason = self._obstacle(request, draft)
            if reason is not None:
                draft.skips.append(Skip(request.seq_id, reason, None))
                return
            self._start(request, draft)
            added = self._add_chunk(request, draft)
            assert added, f"{request.seq_id} was admitted without budget"

    def _obstacle(self, request: Request, draft: _Draft) -> WaitReason | None:
        """The constraint that keeps the head of the queue waiting.

        Budget comes last: it is there again in the next step, slots and blocks are not.
        """
        if self.running >= self.limits.max_seqs:
            return WaitReason.SEQS
        needed = blocks_for(request.known_tokens, self.limits.block_tokens)
        if draft.preempted or not fits(self.limits, needed, self.pool.free, self.running):
            return WaitReason.PREEMPTED if request.preemptions else WaitReason.KV
        if self._chunk_tokens(request.known_tokens, draft) == 0:
            return WaitReason.BUDGET
        return None

    def _chunk_tokens(self, remaining: int, draft: _Draft) -> int:
        """How much of a prompt's remainder the step can take."""
        if not self.limits.chunked_prefill and remaining > draft.budget_left:
            return 0
        return min(remaining, draft.budget_left)

    def _start(self, request: Request, draft: _Draft) -> None:
        """From the queue into the running set: slot and blocks for all known tokens."""
        assert request.in_flight_samples == 0, f"{request.seq_id} starts with a token in flight"
        self._dequeue(request)
        request.status = Status.RUNNING
        request.slot = self._free_slots.pop()
        request.prefill_tokens = request.known_tokens
        needed = blocks_for(request.known_tokens, self.limits.block_tokens)
        request.blocks = self.pool.allocate(needed)
        self._running.append(request)
        draft.started.append(
            SlotStart(
                slot=request.slot,
                seq_id=request.seq_id,
                sampling=request.submit.sampling,
                prompt=request.submit.prompt,
                outputs=tuple(request.outputs),
                min_tokens=request.submit.min_tokens,
                end_token_ids=(*request.submit.end_token_ids, *request.submit.stop_token_ids),
            )
        )

    def _add_chunk(self, request: Request, draft: _Draft) -> bool:
        remaining = request.prefill_tokens - request.computed_tokens
        count = self._chunk_tokens(remaining, draft)
        if count == 0:
            return False
        samples = count == remaining
        assert request.slot is not None
        draft.prefills.append(
            PrefillChunk(
                seq_id=request.seq_id,
                slot=request.slot,
                start=request.computed_tokens,
                tokens=request.tokens(request.computed_tokens, count),
                blocks=request.blocks,
                recompute_tokens=request.recompute_tokens(count),
                samples=samples,
                output_index=request.next_output_index,
            )
        )
        request.advance(count)
        request.in_flight_samples += samples
        draft.budget_left -= count
        return True

    def _finish(self, draft: _Draft) -> Plan:
        empty = not draft.decodes and not draft.prefills
        stopped = () if empty else tuple(self._stopped_slots)
        plan = Plan(
            step_id=self._next_step_id,
            decodes=tuple(draft.decodes),
            prefills=tuple(draft.prefills),
            started=tuple(draft.started),
            stopped_slots=stopped,
            preempted=tuple(draft.preempted),
            skips=tuple(draft.skips),
            budget_tokens=self.limits.step_tokens,
        )
        assert plan.scheduled_tokens + draft.budget_left == plan.budget_tokens, "budget leaks"
        if not empty:
            self._stopped_slots.clear()
            self._next_step_id += 1
        return plan

    # Moves between states

    def _enqueue(self, request: Request, first: bool) -> None:
        self._waiting[request.seq_id] = request
        if first:
            self._waiting.move_to_end(request.seq_id, last=False)
        self.waiting_tokens += request.known_tokens

    def _dequeue(self, request: Request) -> None:
        del self._waiting[request.seq_id]
        self.waiting_tokens -= request.known_tokens

    def _leave_running(self, request: Request) -> None:
        """Give back slot and blocks."""
        assert request.slot is not None
        self._running.remove(request)
        self.pool.release(request.blocks)
        self._free_slots.append(request.slot)
        self._stopped_slots.append(request.slot)
        request.blocks = []
        request.slot = None

    def _preempt(self, request: Request, draft: _Draft) -> None:
        self._leave_running(request)
        request.status = Status.WAITING
        request.computed_tokens = 0
        request.prefill_tokens = 0
        request.preemptions += 1
        draft.preempted.append(request.seq_id)
        self._enqueue(request, first=True)

    def _end(self, request: Request, reason: EndReason, emit: bool = True) -> None:
        if request.status is Status.RUNNING:
            self._leave_running(request)
        else:
            self._dequeue(request)
        request.status = Status.ENDED
        del self._live[request.seq_id]
        self._report_end(request, reason, emit)

    def _report_end(self, request: Request, reason: EndReason, emit: bool = True) -> None:
        """The one terminal fact, and the word to whoever waits for the sequence."""
        self._news.append((request, reason))
        if emit:
            self._emissions.append(Emission(request.seq_id, None, reason))

    def _fact(self, request: Request, reason: EndReason | None, now_ns: int) -> Fact:
        if reason is None:
            return SequenceQueued(
                seq_id=request.seq_id,
                at_ns=now_ns,
                step_id=self._next_step_id,
                prompt_tokens=len(request.submit.prompt),
                max_tokens=request.submit.max_tokens,
                tenant=request.submit.tenant,
            )
        return SequenceEnded(
            seq_id=request.seq_id,
            at_ns=now_ns,
            step_id=self._next_step_id,
            reason=reason,
            output_tokens=len(request.outputs),
            preemptions=request.preemptions,
        )
