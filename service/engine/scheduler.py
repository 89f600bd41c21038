"""The scheduler: who computes what in the next step.

Pure: commands and outcomes go in; plans, emissions and facts come out. Decodes come
first, so a prompt can never stop them; prefill chunks of running sequences and new
admissions share what is left of the token budget (the stall-free batching of
Sarathi-Serve, Agrawal et al., OSDI 2024), in order of arrival or of fair shares
(`service.engine.fairness`). When blocks run out, sequences whose reader is too slow are
preempted first, then the last in the order of service; what is preempted is recomputed, as
far as the prefix cache has lost it, when it gets its turn again.

Steps may overlap: `plan` can be called before the last plan's outcome is committed.
Then counts such as `in_flight_samples` speak of what has been launched, and a row whose
request ended meanwhile is dropped at commit. Freed blocks and slots may be reused at
once, because the executor runs steps in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from service.engine.admission import Limits, QueueLoad, refusal
from service.engine.draft_proposer import Lookup, lookup_of_prompt
from service.engine.executor import StepFailed
from service.engine.inbox import GrammarReady, SetStepCost, Submit
from service.engine.plan import DecodeRow, Emission, Plan, PrefillChunk, Sample, StepOutcome
from service.engine.planner import Planner
from service.engine.request import Request, Status
from service.engine.sequence_table import Residents
from service.engine.stopping import end_after
from service.engine.token_ids import names_unknown_token
from telemetry.facts.engine_records import (
    BlocksSealed,
    CacheFlushed,
    GrammarCompiled,
    SequencePaused,
    SequenceResumed,
    StepAborted,
    StepCostSet,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step gave: tokens by sequence, whose tokens were wasted, and blocks made full."""

    tokens: dict[int, int]
    wasted: frozenset[int]
    filled: tuple[BlocksSealed, ...] = ()


class Scheduler:
    """Takes commands and outcomes; `Planner` decides, `Residents` keeps the books."""

    def __init__(
        self,
        limits: Limits,
        make_lookup: Callable[[Submit], Lookup] = lookup_of_prompt,
        vocab_tokens: int | None = None,
    ) -> None:
        """`make_lookup` gives what guesses a sequence's next tokens, where drafts are on. Of a
        model with `vocab_tokens` tokens no other ones are let in."""
        self.limits = limits
        self._vocab_tokens = vocab_tokens
        self._make_lookup = make_lookup
        self.residents = Residents(limits)
        self.pool = self.residents.pool
        self._planner = Planner(limits, self.residents)
        self._deadlines: list[tuple[int, int]] = []

    @property
    def running(self) -> int:
        return len(self.residents.running)

    @property
    def waiting(self) -> int:
        return len(self.residents.queue)

    @property
    def waiting_tokens(self) -> int:
        return self.residents.queue.tokens

    @property
    def has_live(self) -> bool:
        return bool(self.residents.live)

    @property
    def next_deadline_ns(self) -> int | None:
        """When the next live request is to be dropped."""
        while self._deadlines and self._deadlines[0][1] not in self.residents.live:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    # Commands

    def submit(self, command: Submit, now_ns: int) -> None:
        """Queue a request, or end it at once with the reason of its refusal."""
        queue = self.residents.queue
        load = QueueLoad(
            requests=len(queue), tokens=queue.tokens, of_tenant=queue.of_tenant(command.tenant)
        )
        request = Request(command)
        reason = refusal(self.limits, len(command.prompt), load)
        if names_unknown_token(command, self._vocab_tokens):
            reason = EndReason.INVALID_TOKEN
        if reason is not None:
            self.residents.refuse(request, reason)
            return
        if self.limits.draft_tokens:
            request.lookup = self._make_lookup(command)
        self.residents.enter(request, now_ns)
        if command.deadline_ns is not None:
            heapq.heappush(self._deadlines, (command.deadline_ns, command.seq_id))

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        """End a sequence; one that is unknown or has ended already is left alone."""
        request = self.residents.live.get(seq_id)
        if request is not None:
            self.residents.end(request, reason)

    def pause(self, seq_id: int) -> None:
        """Generate nothing for a sequence until it resumes."""
        request = self.residents.live.get(seq_id)
        if request is None or request.paused:
            return
        request.paused = True
        if request.status is Status.WAITING:
            self.residents.queue.hold(request)
        self._tell(SequencePaused, seq_id)

    def resume(self, seq_id: int, now_ns: int) -> None:
        request = self.residents.live.get(seq_id)
        if request is None or not request.paused:
            return
        request.paused = False
        if request.status is Status.WAITING and not request.held:
            self.residents.queue.release(request, request.preemptions > 0, now_ns)
        self._tell(SequenceResumed, seq_id)

    def grammar_ready(self, command: GrammarReady, now_ns: int) -> None:
        """The sequence may run, or ends because its grammar was refused."""
        request = self.residents.live.get(command.seq_id)
        if request is None or not request.awaits_grammar:
            return
        request.awaits_grammar = False
        refused = command.error is not None
        self.residents.tell(
            partial(
                GrammarCompiled,
                seq_id=command.seq_id,
                step_id=self.residents.next_step_id,
                compile_ns=command.compile_ns,
                cached=command.cached,
                refused=refused,
            )
        )
        if refused:
            self.residents.end(request, EndReason.GRAMMAR_INVALID, detail=command.error)
        elif not request.held:
            self.residents.queue.release(request, False, now_ns)

    def set_step_cost(self, command: SetStepCost) -> None:
        self._planner.cost = command
        self.residents.tell(
            partial(
                StepCostSet,
                step_id=self.residents.next_step_id,
                base_ns=command.base_ns,
                prefill_token_ns=command.prefill_token_ns,
                decode_row_ns=command.decode_row_ns,
                context_token_ns=command.context_token_ns,
            )
        )

    def flush_cache(self) -> None:
        """Forget every cached prefix; running sequences keep their blocks to themselves."""
        blocks = self.residents.prefix.flush()
        step_id = self.residents.next_step_id
        self.residents.tell(partial(CacheFlushed, step_id=step_id, blocks=blocks))

    # One step

    def plan(self, now_ns: int) -> Plan:
        """Decide the next step. An empty plan is not to be launched."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, seq_id = heapq.heappop(self._deadlines)
            self.cancel(seq_id, EndReason.DEADLINE)
        return self._planner.plan(now_ns)

    def commit(self, plan: Plan, outcome: StepOutcome) -> Committed:
        """Book the outcome of a launched plan."""
        self.residents.prefix.copied(plan.copies)
        rows = plan.sampled_rows
        assert len(rows) == len(outcome.samples), f"{len(rows)} rows, {len(outcome.samples)} tokens"
        for chunk in plan.prefills:
            if not chunk.samples:
                self._note_computed(chunk, len(chunk.tokens))
        tokens: dict[int, int] = {}
        wasted: set[int] = set()
        for row, samples in zip(rows, outcome.samples, strict=True):
            request = self.residents.live.get(row.seq_id)
            if request is None:
                wasted.add(row.seq_id)
            else:
                tokens[row.seq_id] = self._commit_row(request, row, samples)
        return Committed(tokens, frozenset(wasted), self.residents.take_filled())

    def fail(self, plan: Plan, error: StepFailed) -> Committed:
        """The plan could not be computed: its sequences end, the others go on. Blocks that it
        was to fill from the host tier may hold anything, so no cached prefix is trusted."""
        ending = [row.seq_id for row in plan.rows if row.seq_id in self.residents.live]
        self.residents.tell(
            partial(
                StepAborted,
                step_id=plan.step_id,
                failure=error.kind,
                detail=error.detail,
                sequences=len(ending),
            )
        )
        for seq_id in ending:
            self.cancel(seq_id, EndReason.EXECUTOR_ERROR)
        self.flush_cache()
        return Committed({}, frozenset(row.seq_id for row in plan.rows))

    def take_facts(self, now_ns: int) -> list[Fact]:
        """What happened to requests since the last call, stamped with the present."""
        return self.residents.take_facts(now_ns)

    def take_emissions(self) -> list[Emission]:
        return self.residents.take_emissions()

    def check(self) -> None:
        """Walk all bookkeeping; raises AssertionError with the numbers when it is wrong."""
        self.residents.check()

    # The parts of commit()

    def _commit_row(
        self, request: Request, row: DecodeRow | PrefillChunk, samples: tuple[Sample, ...]
    ) -> int:
        """Book a row's tokens up to the one that ends the sequence; returns how many."""
        assert row.output_index == len(request.outputs), f"{row.seq_id}: token out of order"
        request.in_flight_samples -= 1
        if len(samples) > 1:
            request.advance(len(samples) - 1)
        inputs = len(row.tokens) if isinstance(row, PrefillChunk) else len(samples)
        self._note_computed(row, inputs)
        for count, sample in enumerate(samples, 1):
            request.outputs.append(sample.token_id)
            if request.lookup is not None:
                request.lookup.extend((sample.token_id,))
            if request.status is Status.WAITING:
                self.residents.queue.grew(1)
            reason = end_after(request, self.limits.max_model_tokens)
            self.residents.emit(Emission(request.seq_id, sample, reason))
            if reason is not None:
                self._finish(request, reason, count)
                return count
        self.residents.ledger.decoded(request.submit.tenant, len(samples))
        return len(samples)

    def _finish(self, request: Request, reason: EndReason, tokens: int) -> None:
        self.residents.ledger.decoded(request.submit.tenant, tokens)
        self.residents.end(request, reason, emit=False)

    def _note_computed(self, row: DecodeRow | PrefillChunk, inputs: int) -> None:
        """A row's inputs are in the cache now, if its sequence still holds the same blocks."""
        request = self.residents.live.get(row.seq_id)
        if request is None or request.blocks is not row.blocks:
            return
        known = min(row.start + inputs, request.known_tokens)
        self.residents.computed(request, known)

    def _tell(self, fact: type[SequencePaused | SequenceResumed], seq_id: int) -> None:
        self.residents.tell(partial(fact, seq_id=seq_id, step_id=self.residents.next_step_id))
