"""Decides one step: decodes, then chunks of prompts, then who may come in."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from service.engine.admission import Limits, fits
from service.engine.budget import StepLoad, prefill_allowance
from service.engine.inbox import SetStepCost
from service.engine.kv.blocks import blocks_for
from service.engine.kv.prefix import Match
from service.engine.plan import Plan
from service.engine.plan_builder import Draft
from service.engine.queue import Rank
from service.engine.request import Request, Status
from service.engine.sequence_table import Residents
from service.engine.stopping import may_grow
from telemetry.facts.reasons import WaitReason


class Planner:
    """Holds every `if` about who runs; the moves themselves are the residents'."""

    def __init__(self, limits: Limits, residents: Residents) -> None:
        self.limits = limits
        self.residents = residents
        self.pool = residents.pool
        self.cost: SetStepCost | None = None
        self._untold: list[int] = []

    def plan(self, now_ns: int) -> Plan:
        """The next step. An empty plan is not to be launched."""
        draft = Draft(self.limits.step_tokens)
        draft.preempted, self._untold = self._untold, []
        self._plan_decodes(draft, now_ns)
        self._add_guesses(draft, now_ns)
        draft.narrow(self._prefill_allowance(draft))
        self._plan_prefills(draft, now_ns)
        residents = self.residents
        if draft.is_empty:
            self._untold = draft.preempted  # the next step's record will name them
            return draft.finish(residents.next_step_id, (), ())
        stopped, copies = residents.take_stopped_slots(), residents.prefix.take_copies()
        plan = draft.finish(residents.next_step_id, stopped, copies)
        residents.next_step_id += 1
        return plan

    def _plan_decodes(self, draft: Draft, now_ns: int) -> None:
        """Best first, so that whoever must give up his blocks has no row yet."""
        order = self._service_order(now_ns)
        for request in order:
            if request.status is not Status.RUNNING:
                continue
            if request.paused:
                draft.skip(request, WaitReason.CLIENT_PAUSE)
                continue
            if request.in_prefill or not may_grow(request, self.limits.max_model_tokens):
                continue  # its chunk comes later, or its last token is in flight
            if not self._grow(request, order, draft, now_ns):
                continue
            draft.decode(request)

    def _service_order(self, now_ns: int) -> list[Request]:
        """Running sequences, the first to be served and the last to be preempted in front."""
        running = self.residents.running
        if len(running) < 2:
            return list(running)
        rank = self._rank(now_ns)

        def key(request: Request) -> tuple[bool, int, int]:
            priority, service, _, _ = rank(request)
            return (request.paused, priority, service)

        return sorted(running, key=key)

    def _rank(self, now_ns: int) -> Callable[[Request], Rank]:
        batch = Counter(request.submit.tenant for request in self.residents.running)
        return self.residents.queue.rank(now_ns, batch)

    def _grow(self, request: Request, order: list[Request], draft: Draft, now_ns: int) -> bool:
        """Room for one more token; may preempt the last in order, in the end the request itself."""
        needed = blocks_for(request.computed_tokens + 1, self.limits.block_tokens)
        missing = needed - len(request.blocks)
        if missing <= 0:
            return True  # as for fifteen tokens of sixteen
        while missing > self.pool.available:
            victim = next(r for r in reversed(order) if r.status is Status.RUNNING)
            draft.pressed = draft.pressed or not victim.paused
            self._preempt(victim, draft, now_ns)
            if victim is request:
                return False
        self.residents.grow(request, max(0, missing), now_ns)
        return True

    def _add_guesses(self, draft: Draft, now_ns: int) -> None:
        """Drafts take only what is left when every sequence has its one token, and leave
        prompts their due."""
        if not self.limits.draft_tokens:
            return
        spare = draft.budget_left - self._due_to_prompts()
        for place, row in enumerate(draft.decodes):
            drafts = self._guess(self.residents.live[row.seq_id], spare, now_ns)
            spare -= len(drafts)
            draft.guess(place, drafts)

    def _due_to_prompts(self) -> int:
        """Tokens that drafts must leave: a block while anybody has a prompt to compute, all
        of the step if prompts are computed in one piece."""
        residents = self.residents
        if not residents.queue.has_candidates and not any(r.in_prefill for r in residents.running):
            return 0
        return self.limits.block_tokens if self.limits.chunked_prefill else self.limits.step_tokens

    def _guess(self, request: Request, spare: int, now_ns: int) -> list[int]:
        """Draft tokens, as far as budget, limits and free blocks allow without any pressure."""
        if request.lookup is None:
            return []
        outputs_left = request.submit.max_tokens - len(request.outputs) - 1
        context_left = self.limits.max_model_tokens - request.known_tokens - 1
        count = min(self.limits.draft_tokens, spare, outputs_left, context_left)
        if count <= 0:
            return []
        drafts = request.lookup.propose(count)
        needed = blocks_for(request.computed_tokens + len(drafts), self.limits.block_tokens)
        missing = needed - len(request.blocks)
        if missing > self.pool.available - self.limits.watermark_blocks:
            return []
        self.residents.grow(request, max(0, missing), now_ns)
        return drafts

    def _prefill_allowance(self, draft: Draft) -> int:
        load = StepLoad(decodes=len(draft.decodes), context_tokens=draft.context_tokens)
        drafted = draft.budget_tokens - draft.budget_left - load.decodes
        budget = self.limits.step_tokens - drafted
        if not self.limits.chunked_prefill:
            return budget - load.decodes
        size = self.limits.block_tokens
        return prefill_allowance(self.cost, self.limits.itl_target_ns, load, budget, size)

    def _plan_prefills(self, draft: Draft, now_ns: int) -> None:
        """Chunks of running prompts and new admissions, in one order of service."""
        started = [r for r in self.residents.running if r.in_prefill and not r.paused]
        if not started and not self.residents.queue.has_candidates:
            return  # nearly always
        rank = self._rank(now_ns)
        pending = deque(sorted(started, key=rank))
        capped: set[str] = set()
        head = self._head(draft, capped, now_ns)
        while pending or head is not None:
            if pending and (head is None or rank(pending[0]) <= rank(head)):
                request = pending.popleft()
                if not self._add_chunk(request, draft):
                    draft.skip(request, WaitReason.BUDGET)
                continue
            assert head is not None
            admitted = self._admit(head, rank(head)[0], draft, now_ns)
            head = self._head(draft, capped, now_ns) if admitted else None

    def _head(self, draft: Draft, capped: set[str], now_ns: int) -> Request | None:
        """The request to admit next; those of tenants at their limit are passed over."""
        limit = self.limits.tenant_max_seqs
        for request in self.residents.queue.heads(self._rank(now_ns)):
            tenant = request.submit.tenant
            if limit is None or self.residents.of_tenant(tenant) < limit:
                return request
            if tenant not in capped:
                capped.add(tenant)
                draft.skip(request, WaitReason.POLICY)
        return None

    def _admit(self, request: Request, priority: int, draft: Draft, now_ns: int) -> bool:
        match = self.residents.match(request, now_ns)
        reason = self._obstacle(request, match, draft, now_ns)
        if reason is not None:
            draft.skip(request, reason)
            return False
        draft.start(self.residents.start(request, match, priority, now_ns))
        added = self._add_chunk(request, draft)
        assert added, f"{request.seq_id} was admitted without budget"
        return True

    def _obstacle(
        self, request: Request, match: Match, draft: Draft, now_ns: int
    ) -> WaitReason | None:
        """The constraint that keeps the head of the queue waiting.

        Sequences whose reader is too slow give way to it, if that helps. Budget is named
        last: it is there again in the next step, slots and blocks are not.
        """
        squeezed = WaitReason.PREEMPTED if request.preemptions else WaitReason.KV
        if draft.pressed:
            return squeezed
        hits = (len(match.blocks) + len(match.host_digests)) * self.limits.block_tokens
        has_budget = self._chunk_tokens(request.known_tokens - hits, draft) > 0
        total = blocks_for(request.known_tokens, self.limits.block_tokens)
        paused = [r for r in self.residents.running if r.paused] if has_budget else []
        if len(self.residents.running) - len(paused) >= self.limits.max_seqs:
            return WaitReason.SEQS
        if not self._fits(match, total, sum(len(r.blocks) for r in paused)):
            return squeezed
        while len(self.residents.running) >= self.limits.max_seqs or not self._fits(match, total):
            if not paused:
                return squeezed  # what they held is shared with others
            self._preempt(paused.pop(), draft, now_ns)
        return None if has_budget else WaitReason.BUDGET

    def _fits(self, match: Match, blocks: int, reclaimable: int = 0) -> bool:
        """Whether a table of so many blocks can be had, were `reclaimable` blocks given up."""
        needed = self.residents.prefix.cost(match, blocks)
        running = len(self.residents.running)
        return fits(self.limits, needed, self.pool.available + reclaimable, running)

    def _preempt(self, victim: Request, draft: Draft, now_ns: int) -> None:
        self.residents.preempt(victim, now_ns)
        draft.preempted.append(victim.seq_id)

    def _chunk_tokens(self, remaining: int, draft: Draft) -> int:
        """How much of a prompt's remainder the step can take."""
        if not self.limits.chunked_prefill and remaining > draft.budget_left:
            return 0
        return min(remaining, draft.budget_left)

    def _add_chunk(self, request: Request, draft: Draft) -> bool:
        count = self._chunk_tokens(request.prefill_tokens - request.computed_tokens, draft)
        if count:
            draft.prefill(request, count)
        return count > 0
