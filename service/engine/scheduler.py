"""The scheduler: who computes what in the next step.

Pure: commands and outcomes go in; plans, emissions and facts come out. Decodes come
first, so a prompt can never stop them; prefill chunks of running sequences and new
admissions share what is left of the token budget (the stall-free batching of
Sarathi-Serve, Agrawal et al., OSDI 2024), in order of arrival or of fair shares
(`service.engine.fairness`). When blocks run out, paused sequences are preempted first, then
the last in the order of service. A preempted sequence is admitted again later, and computes
again what the prefix cache no longer has of it.

Steps may overlap: `plan` can be called before the last plan's outcome is committed. Then counts
such as `in_flight_samples` include launched steps, and a row whose request ended meanwhile is
dropped at commit. Freed blocks and slots may be reused at once: the executor runs steps in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import msgspec

from service.engine.adapters.desk import AdapterDesk
from service.engine.admission import Limits, QueueLoad, refusal
from service.engine.draft_proposer import DraftProposer, ngram_proposer
from service.engine.executor import StepFailed
from service.engine.inbox import GrammarReady, SetLimits, SetStepCost, Submit
from service.engine.limits_record import with_runtime
from service.engine.plan import DecodeRow, Emission, Plan, PrefillChunk, Sample, StepOutcome
from service.engine.planner import Planner
from service.engine.planning.slack import is_late
from service.engine.remote_kv.desk import RemoteKv
from service.engine.sequences.deadlines import Deadlines
from service.engine.sequences.fact_log import FactLog
from service.engine.sequences.prefix_blocks import prefix_cache_of
from service.engine.sequences.request import Request, Status
from service.engine.sequences.sequence_table import SequenceTable
from service.engine.sequences.stopping import end_after
from service.engine.token_ids import names_unknown_token
from telemetry.facts.engine_records import (
    CacheFlushed,
    GrammarCompiled,
    LimitsSet,
    SequencePaused,
    SequenceResumed,
    StepAborted,
    StepCostSet,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import BlocksSealed


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step gave: number of tokens by sequence, sequences whose tokens were dropped, and
    aliases of blocks that became full."""

    tokens: dict[int, int]
    wasted: frozenset[int]
    sealed: tuple[BlocksSealed, ...] = ()


class Scheduler:
    """Takes commands and outcomes. `Planner` decides; `SequenceTable` has the sequences, `prefix`
    and its `pool` the KV blocks, `log` the facts that are not taken yet."""

    def __init__(
        self,
        limits: Limits,
        make_proposer: Callable[[Submit], DraftProposer] = ngram_proposer,
        vocab_tokens: int | None = None,
    ) -> None:
        """`make_proposer` makes the draft proposer of a sequence, where `limits.draft_tokens` is
        not 0. Token ids from `vocab_tokens` on are refused; None: the size is not known."""
        self.limits = self._started_with = limits
        self._vocab_tokens = vocab_tokens
        self._make_proposer = make_proposer
        self.log = FactLog()
        self.prefix = prefix_cache_of(limits)
        self.pool = self.prefix.pool
        self.table = SequenceTable(limits, self.prefix, self.log)
        self._blocks, self._counters = self.table.blocks, self.table.counters
        self.adapters = AdapterDesk(limits.adapter_bytes, limits.max_adapters, self.table, self.log)
        self.remote_kv = RemoteKv(limits, self.table, self.prefix, self.log)
        self._planner = Planner(limits, self.table, self.prefix, self.remote_kv.received, self.log)
        self.cost = self._planner.cost
        self._deadlines = Deadlines(self.table.live)

    @property
    def running(self) -> int:
        return len(self.table.running)

    @property
    def waiting(self) -> int:
        return len(self.table.queue)

    @property
    def waiting_tokens(self) -> int:
        return self.table.queue.tokens

    @property
    def has_live(self) -> bool:
        return bool(self.table.live)

    @property
    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of a live request; None without one."""
        return self._deadlines.next_ns

    # Commands

    def submit(self, command: Submit, now_ns: int) -> None:
        """Queue a request, or end it at once with the reason of its refusal."""
        queue = self.table.queue
        of_tenant = queue.waiting_of(command.tenant)
        load = QueueLoad(requests=len(queue), tokens=queue.tokens, of_tenant=of_tenant)
        request = Request(command)
        least_outputs = min(1, command.max_tokens)
        reason = refusal(self.limits, len(command.prompt), load, least_outputs)
        if names_unknown_token(command, self._vocab_tokens):
            reason = EndReason.INVALID_TOKEN
        if reason is not None:
            self.table.refuse(request, reason)
            return
        if (unloaded := self.adapters.refusal(command)) is not None:
            self.table.refuse(request, EndReason.ADAPTER_UNLOADED, unloaded)
            return
        request.awaits_kv = command.receives_kv > 0
        # an idle engine has nothing better to do
        if self.limits.refuse_late and self.has_live and not request.awaits_kv:
            late_ns = self._planner.late_by_ns(request, now_ns)
            if late_ns > 0:
                alone = is_late(request, now_ns, self._planner.cost.prompt_token_ns)
                seconds = None if alone else str(ceil(late_ns / 1e9))
                self.table.refuse(request, EndReason.TTFT_UNREACHABLE, seconds)
                return
        if self.limits.draft_tokens:
            request.proposer = self._make_proposer(command)
        request.awaits_adapter = self.adapters.must_wait(command)
        self.table.add(request, now_ns)
        if request.awaits_adapter:
            self.adapters.queued(request)
        if request.awaits_kv:
            self.remote_kv.received.reserve(request, now_ns)
        self._planner.submitted(request, now_ns)
        if command.deadline_ns is not None:
            self._deadlines.add(command.deadline_ns, command.seq_id)

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        """End a sequence; one that is unknown or has ended already is left alone."""
        if (request := self.table.live.get(seq_id)) is not None:
            self.table.end(request, reason)

    def pause(self, seq_id: int) -> None:
        """Generate nothing for a sequence until it resumes."""
        if (request := self.table.live.get(seq_id)) is None or request.paused:
            return
        request.paused = True
        if request.status is Status.WAITING:
            self.table.queue.block(request)
            self.remote_kv.received.paused(request)
        self._record(SequencePaused, seq_id)

    def resume(self, seq_id: int, now_ns: int) -> None:
        if (request := self.table.live.get(seq_id)) is None or not request.paused:
            return
        request.paused = False
        if request.status is Status.WAITING and not request.blocked:
            self.table.queue.unblock(request, request.preemptions > 0, now_ns)
        self._record(SequenceResumed, seq_id)

    def grammar_ready(self, command: GrammarReady, now_ns: int) -> None:
        """The grammar is compiled, so the sequence may run; or it was refused, so the sequence
        ends."""
        request = self.table.live.get(command.seq_id)
        if request is None or not request.awaits_grammar:
            return
        request.awaits_grammar = False
        refused = command.error is not None
        self.log.record(
            partial(
                GrammarCompiled,
                seq_id=command.seq_id,
                step_id=self.log.next_step_id,
                compile_ns=command.compile_ns,
                cached=command.cached,
                refused=refused,
            )
        )
        if refused:
            self.table.end(request, EndReason.GRAMMAR_INVALID, detail=command.error)
        elif not request.blocked:
            self.table.queue.unblock(request, False, now_ns)

    def set_step_cost(self, command: SetStepCost) -> None:
        self._planner.cost.set(command)
        cost = msgspec.structs.asdict(command)
        self.log.record(partial(StepCostSet, step_id=self.log.next_step_id, **cost))

    def set_limits(self, command: SetLimits) -> None:
        """Put other limits in force; sequences that run go on. Raises LimitError."""
        self.limits = with_runtime(self._started_with, command.limits)
        self._planner.limits = self.limits
        self.table.set_limits(self.limits)
        self.prefix.enabled = self.limits.prefix_cache
        self.log.record(
            partial(
                LimitsSet,
                step_id=self.log.next_step_id,
                limits=command.limits,
                changed=command.changed,
                by=command.by,
                why=command.why,
            )
        )

    def flush_cache(self) -> None:
        """Forget every cached prefix; running sequences keep their blocks to themselves."""
        blocks = self.prefix.flush()
        self.log.record(partial(CacheFlushed, step_id=self.log.next_step_id, blocks=blocks))

    # One step

    def plan(self, now_ns: int) -> Plan:
        """Decide the next step. An empty plan is not to be launched."""
        for seq_id in self._deadlines.take_due(now_ns):
            self.cancel(seq_id, EndReason.DEADLINE)
        plan = self._planner.plan(now_ns)
        if not plan.is_empty:
            self.adapters.planned(plan)
        return plan

    def commit(self, plan: Plan, outcome: StepOutcome) -> Committed:
        """Apply the outcome of a launched plan."""
        self.adapters.finished()
        self.remote_kv.received.committed(plan.step_id)
        self.prefix.copied(plan.copies)
        self._planner.cost.learn(plan, outcome)
        rows = plan.sampled_rows
        assert len(rows) == len(outcome.samples), f"{len(rows)} rows, {len(outcome.samples)} tokens"
        self._emit_read(plan, outcome)
        for chunk in plan.prefills:
            if not chunk.samples:
                self._commit_chunk(chunk)
        tokens: dict[int, int] = {}
        wasted: set[int] = set()
        for row, samples in zip(rows, outcome.samples, strict=True):
            request = self.table.live.get(row.seq_id)
            if request is None:
                wasted.add(row.seq_id)
            else:
                tokens[row.seq_id] = self._commit_row(request, row, samples)
        return Committed(tokens, frozenset(wasted), self.log.take_sealed())

    def fail(self, plan: Plan, error: StepFailed) -> Committed:
        """The plan could not be computed: its sequences end, the others go on. Blocks that it
        was to load from CPU memory may hold anything, so the prefix cache is flushed."""
        self.adapters.finished()
        self.remote_kv.received.committed(plan.step_id)
        ending = [row.seq_id for row in plan.rows if row.seq_id in self.table.live]
        self.log.record(
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
        """Facts since the last call, stamped `now_ns`."""
        return self.log.take_facts(now_ns)

    def take_emissions(self) -> list[Emission]:
        return self.log.take_emissions()

    def check(self) -> None:
        """Walk all state; raises AssertionError with the numbers when it is inconsistent."""
        self.table.check()
        self.adapters.check()

    # The parts of commit()

    def _emit_read(self, plan: Plan, outcome: StepOutcome) -> None:
        """Pass on what was read of prompts."""
        if not outcome.prompts:
            return
        for chunk, found in zip(plan.read_chunks, outcome.prompts, strict=True):
            if found is not None and chunk.seq_id in self.table.live:
                self.log.emit(Emission(chunk.seq_id, None, None, prompt=found))

    def _commit_chunk(self, chunk: PrefillChunk) -> None:
        """A chunk without a token; the last one ends a sequence that wants none."""
        self._register_computed(chunk, len(chunk.tokens))
        request = self.table.live.get(chunk.seq_id)
        if request is None or request.submit.max_tokens:
            return
        if chunk.start + len(chunk.tokens) == len(request.submit.prompt):
            self.table.end(request, EndReason.MAX_TOKENS)

    def _commit_row(
        self, request: Request, row: DecodeRow | PrefillChunk, samples: tuple[Sample, ...]
    ) -> int:
        """Append a row's tokens, up to the one that ends the sequence; returns how many."""
        assert row.output_index == len(request.outputs), f"{row.seq_id}: token out of order"
        request.in_flight_samples -= 1
        if len(samples) > 1:
            request.advance(len(samples) - 1)
        inputs = len(row.tokens) if isinstance(row, PrefillChunk) else len(samples)
        self._register_computed(row, inputs)
        for count, sample in enumerate(samples, 1):
            request.outputs.append(sample.token_id)
            if request.proposer is not None:
                request.proposer.extend((sample.token_id,))
            if request.status is Status.WAITING:
                self.table.queue.add_tokens(1)
            reason = end_after(request, self.limits.max_model_tokens)
            self.log.emit(Emission(request.seq_id, sample, reason))
            if reason is not None:
                self._finish(request, reason, count)
                return count
        self._counters.add_decode(request.submit.tenant, len(samples))
        return len(samples)

    def _finish(self, request: Request, reason: EndReason, tokens: int) -> None:
        self._counters.add_decode(request.submit.tenant, tokens)
        self.table.end(request, reason, emit=False)

    def _register_computed(self, row: DecodeRow | PrefillChunk, inputs: int) -> None:
        """Register a row's inputs as computed, if its sequence still has the same blocks."""
        request = self.table.live.get(row.seq_id)
        if request is None or request.blocks is not row.blocks:
            return
        known = min(row.start + inputs, request.known_tokens)
        self._blocks.register_computed(request, known)
        self.remote_kv.sent.computed(request, known)

    def _record(self, fact: type[SequencePaused | SequenceResumed], seq_id: int) -> None:
        self.log.record(partial(fact, seq_id=seq_id, step_id=self.log.next_step_id))
