"""Decides one step: decodes, then chunks of prompts, then who may come in."""

from __future__ import annotations

from collections import deque

from service.engine.admission import Limits, fits
from service.engine.blocks import blocks_for
from service.engine.budget import StepLoad, prefill_allowance
from service.engine.draft import Draft
from service.engine.fairness import Policy
from service.engine.inbox import SetStepCost
from service.engine.plan import Plan
from service.engine.prefix import Match
from service.engine.request import Request, Status
from service.engine.residents import Residents
from service.engine.stopping import may_grow
from telemetry.reasons import WaitReason


class Planner:
    """Holds every `if` about who runs; the moves themselves are the residents'."""

    def __init__(self, limits: Limits, residents: Residents) -> None:
        self.limits = limits
        self.residents = residents
        self.pool = residents.pool
        self.cost: SetStepCost | None = None

    def plan(self, now_ns: int) -> Plan:
        """The next step. An empty plan is not to be launched."""
        draft = Draft(self.limits.step_tokens)
        self._plan_decodes(draft, now_ns)
        draft.narrow(self._prefill_allowance(draft))
        self._plan_prefills(draft, now_ns)
        residents = self.residents
        if draft.is_empty:
            return draft.finish(residents.next_step_id, (), ())
        stopped, copies = residents.take_stopped_slots(), residents.prefix.take_copies()
        plan = draft.finish(residents.next_step_id, stopped, copies)
        residents.next_step_id += 1
        return plan

    def _plan_decodes(self, draft: Draft, now_ns: int) -> None:
        """Best first, so that whoever must give up his blocks has no row yet."""
        order = self._service_order(now_ns)
        spare = draft.budget_left - len(order)
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
            drafts = self._guess(request, spare, now_ns)
            spare -= len(drafts)
            draft.decode(request, drafts)

    def _service_order(self, now_ns: int) -> list[Request]:
        """Running sequences, the first to be served and the last to be preempted in front."""
        rank = self.residents.queue.rank(now_ns)
        fair = self.limits.policy is Policy.VTC

        def key(request: Request) -> tuple[bool, int, int]:
            priority, service, _ = rank(request)
            return (request.paused, priority, service if fair else 0)

        return sorted(self.residents.running, key=key)

    def _grow(self, request: Request, order: list[Request], draft: Draft, now_ns: int) -> bool:
        """Room for one more token; may preempt the last in order, in the end the request itself."""
        needed = blocks_for(request.computed_tokens + 1, self.limits.block_tokens)
        missing = needed - len(request.blocks)
        while missing > self.pool.available:
            victim = next(r for r in reversed(order) if r.status is Status.RUNNING)
            draft.pressed = draft.pressed or not victim.paused
            self._preempt(victim, draft)
            if victim is request:
                return False
        self.residents.grow(request, max(0, missing), now_ns)
        return True

    def _guess(self, request: Request, spare: int, now_ns: int) -> list[int]:
        """Draft tokens, as far as budget, limits and free blocks allow without any pressure."""
        if request.lookup is None or request.in_flight_samples:
            return []
        outputs_left = request.submit.max_tokens - len(request.outputs) - 1
        context_left = self.limits.max_model_tokens - request.known_tokens - 1
        count = min(self.limits.draft_tokens, spare, outputs_left, context_left)
        if count <= 0:
            return []
        drafts = request.lookup.propose(count)
        needed = blocks_for(request.computed_tokens + 1 + len(drafts), self.limits.block_tokens)
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
        rank = self.residents.queue.rank(now_ns)
        started = [r for r in self.residents.running if r.in_prefill and not r.paused]
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
            head = self._head(draft, capped, now_ns) if self._admit(head, draft, now_ns) else None

    def _head(self, draft: Draft, capped: set[str], now_ns: int) -> Request | None:
        """The request to admit next; those of tenants at their limit are passed over."""
        limit = self.limits.tenant_max_seqs
        for request in self.residents.queue.heads(now_ns):
            tenant = request.submit.tenant
            if limit is None or self._active(tenant) < limit:
                return request
            if tenant not in capped:
                capped.add(tenant)
                draft.skip(request, WaitReason.POLICY)
        return None

    def _active(self, tenant: str) -> int:
        return sum(r.submit.tenant == tenant and not r.paused for r in self.residents.running)

    def _admit(self, request: Request, draft: Draft, now_ns: int) -> bool:
        match = self.residents.match(request, now_ns)
        reason = self._obstacle(request, match, draft)
        if reason is not None:
            draft.skip(request, reason)
            return False
        draft.start(self.residents.start(request, match, now_ns))
        added = self._add_chunk(request, draft)
        assert added, f"{request.seq_id} was admitted without budget"
        return True

    def _obstacle(self, request: Request, match: Match, draft: Draft) -> WaitReason | None:
        """The constraint that keeps the head of the queue waiting.

        Budget comes last: it is there again in the next step, slots and blocks are not.
        """
        squeezed = WaitReason.PREEMPTED if request.preemptions else WaitReason.KV
        if draft.pressed:
            return squeezed
        running = self.residents.running
        if len(running) >= self.limits.max_seqs and not self._reclaim(draft):
            return WaitReason.SEQS
        total = blocks_for(request.known_tokens, self.limits.block_tokens)
        needed = self.residents.prefix.cost(match, total)
        while not fits(self.limits, needed, self.pool.available, len(running)):
            if not self._reclaim(draft):
                return squeezed
            needed = self.residents.prefix.cost(match, total)
        hits = (len(match.blocks) + len(match.host_digests)) * self.limits.block_tokens
        if self._chunk_tokens(request.known_tokens - hits, draft) == 0:
            return WaitReason.BUDGET
        return None

    def _reclaim(self, draft: Draft) -> bool:
        """Preempt a sequence whose reader is too slow, for one whose reader is not."""
        victim = next((r for r in reversed(self.residents.running) if r.paused), None)
        if victim is None:
            return False
        self._preempt(victim, draft)
        return True

    def _preempt(self, victim: Request, draft: Draft) -> None:
        self.residents.preempt(victim)
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
