"""Decides one step: decode rows, then prefill chunks and admissions in the order of service."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable

from service.engine.admission import Limits, fits
from service.engine.fairness import Policy
from service.engine.kv.blocks import blocks_for
from service.engine.kv.prefix import Match, PrefixCache
from service.engine.plan import Plan
from service.engine.planning.budget import StepCostModel
from service.engine.planning.plan_builder import PlanBuilder
from service.engine.planning.slack import is_late, is_overdue, start_by_ns, work_ns
from service.engine.planning.targets import Bounds, Targets
from service.engine.remote_kv.received import ReceivedKv
from service.engine.remote_kv.starting import start_received
from service.engine.sequences.fact_log import FactLog
from service.engine.sequences.queue import SortKey
from service.engine.sequences.request import Request, Status
from service.engine.sequences.sequence_table import SequenceTable
from service.engine.sequences.stopping import may_grow
from telemetry.facts.reasons import WaitReason


class Planner:
    """Holds every `if` about which sequence runs; the sequence table makes the moves."""

    def __init__(
        self,
        limits: Limits,
        table: SequenceTable,
        prefix: PrefixCache,
        received: ReceivedKv,
        log: FactLog,
    ) -> None:
        self.limits = limits
        self.cost = StepCostModel()
        self._table = table
        self._prefix = prefix
        self._pool = prefix.pool
        self._received = received
        self._log = log
        self._targets = Targets()
        self._unrecorded_preemptions: list[int] = []
        self._set_aside: list[Request] = []
        self._held: Request | None = None

    def submitted(self, request: Request, now_ns: int) -> None:
        """A request has joined the queue."""
        if len(self._table.live) > 1:
            self._targets.saw(request.submit.ttft_target_ns, now_ns)

    def late_by_ns(self, request: Request, now_ns: int) -> float:
        """How long after its target the first token of a new request would come, by the prompts
        that are computed before its own; not above 0 if it can come in time."""
        by_ns = request.submit.first_token_by_ns
        if by_ns is None:
            return 0.0
        if not self._table.running:
            self.cost.unbounded()  # nobody shares its steps
        token_ns = self.cost.prompt_token_ns
        work = sum(work_ns(r, token_ns) for r in [*self._before(request, now_ns), request])
        return now_ns + work - by_ns

    def _before(self, request: Request, now_ns: int) -> list[Request]:
        """Whose prompts are computed before that of a new request, if nobody else comes."""
        request.queued_ns, request.arrival = now_ns, self._table.next_arrival
        key = self._sort_key(now_ns, overdue_first=True)
        own, tenant = key(request), request.submit.tenant
        others = [r for r in self._table.running if r.in_prefill] + list(self._table.queue)
        found, counters = list[Request](), self._table.counters
        charged: dict[str, float] = defaultdict(float)
        for other in sorted((r for r in others if not r.blocked), key=key):
            if key(other) > own:
                break
            rival = other.submit.tenant
            if rival != tenant and key(other)[:2] > (own[0], own[1] - charged[rival]):
                continue  # its tenant has had its share by then
            if other.status is Status.WAITING and self.limits.policy is Policy.VTC:
                charged[rival] += counters.prefill_charge(rival, other.known_tokens)
            found.append(other)
        return found

    def plan(self, now_ns: int) -> Plan:
        """The next step. An empty plan is not to be launched, and leaves nothing behind that later
        plans follow: it is not recorded, so an exact replay does not make it."""
        stretch, self._set_aside = self.cost.stretch, []
        # more may run than `max_seqs` allows since it was lowered: each decodes one token
        builder = PlanBuilder(
            max(self.limits.step_tokens, len(self._table.running)), self.limits.tile_rows
        )
        builder.preempted, self._unrecorded_preemptions = self._unrecorded_preemptions, []
        self._plan_decodes(builder, now_ns)
        start_received(self._received, self._table, self.limits, builder)
        self._add_draft_tokens(builder, now_ns)
        self._limit_prompts(builder, now_ns)
        self._plan_prefills(builder, now_ns)
        step_id = self._log.next_step_id
        if builder.is_empty:
            self._unrecorded_preemptions = builder.preempted  # the next step's record names them
            self.cost.stretch = stretch
            self._table.queue.bring_back(self._set_aside)
            return builder.build(step_id, (), ())
        stopped, copies = self._table.slots.take_stopped(), self._prefix.take_copies()
        plan = builder.build(step_id, stopped, copies)
        self._log.next_step_id += 1
        return plan

    def _plan_decodes(self, builder: PlanBuilder, now_ns: int) -> None:
        """In the order of service, so that a sequence that is preempted has no row yet."""
        order = self._service_order(now_ns)
        for request in order:
            if request.status is not Status.RUNNING:
                continue
            if request.paused:
                builder.skip(request, WaitReason.CLIENT_PAUSE)
                continue
            if request.in_prefill or not may_grow(request, self.limits.max_model_tokens):
                continue  # its chunk comes later, or its last token is in flight
            if not self._grow(request, order, builder, now_ns):
                continue
            builder.add_decode(request)

    def _service_order(self, now_ns: int) -> list[Request]:
        """Running sequences; the last one is preempted first."""
        running = self._table.running
        if len(running) < 2:
            return list(running)
        sort_key = self._table.queue.sort_key(now_ns, {})

        def key(request: Request) -> tuple[bool, int, float]:
            priority, service, *_ = sort_key(request)
            return (request.paused, priority, service)

        return sorted(running, key=key)

    def _sort_key(
        self, now_ns: int, overdue_first: bool | None = None
    ) -> Callable[[Request], SortKey]:
        """The order of the next step; `overdue_first`: whether overdue prompts go first in it."""
        running, queue = self._table.running, self._table.queue
        batch = Counter(request.submit.tenant for request in running)
        if not self.limits.slo_order:
            return queue.sort_key(now_ns, batch)
        token_ns, ageing_ns = self.cost.prompt_token_ns, self.limits.ageing_ns
        tighter_ns = self._tighter_targets()
        if overdue_first is None:
            overdue_first = self._log.next_step_id % 2 == 0
        self._set_aside += queue.set_late_aside(lambda r: is_late(r, now_ns, token_ns))

        def start_by(request: Request) -> float:
            tighter = tighter_ns.get(request.submit.ttft_target_ns or 0, 0)
            return start_by_ns(request, now_ns, token_ns, ageing_ns, tighter, overdue_first)

        return queue.sort_key(now_ns, batch, start_by)

    def _tighter_targets(self) -> dict[int, int]:
        """For each first-token target of a prompt the next tighter one, 0 for the tightest."""
        found = {r.submit.ttft_target_ns or 0 for r in self._table.running if r.in_prefill}
        found.update(target_ns or 0 for target_ns in self._table.queue.ttft_targets)
        ordered = sorted(found)
        return dict(zip(ordered, [0, *ordered], strict=False))

    def _grow(
        self, request: Request, order: list[Request], builder: PlanBuilder, now_ns: int
    ) -> bool:
        """A block for one more token where one is needed; may preempt the last in `order`, in the
        end the request itself. False: it was preempted."""
        needed = blocks_for(request.computed_tokens + 1, self.limits.block_tokens)
        missing = needed - len(request.blocks)
        if missing <= 0:
            return True  # its last block has room
        while missing > self._pool.available:
            victim = next(r for r in reversed(order) if r.status is Status.RUNNING)
            builder.preempted_for_memory = builder.preempted_for_memory or not victim.paused
            self._preempt(victim, builder, now_ns)
            if victim is request:
                return False
        self._table.grow(request, max(0, missing), now_ns)
        return True

    def _add_draft_tokens(self, builder: PlanBuilder, now_ns: int) -> None:
        """Draft tokens take what is left of the budget after one token for each sequence, and
        after what is reserved for prompts."""
        if not self.limits.draft_tokens:
            return
        spare = builder.budget_left - self._reserved_for_prefill()
        for index, row in enumerate(builder.decodes):
            drafts = self._propose(self._table.live[row.seq_id], spare, now_ns)
            spare -= len(drafts)
            builder.add_draft_tokens(index, drafts)

    def _reserved_for_prefill(self) -> int:
        """Tokens that drafts must leave: none without a prompt to compute, one block with one, and
        the whole step where prompts are not chunked."""
        table = self._table
        if not table.queue.has_candidates and not any(r.in_prefill for r in table.running):
            return 0
        return self.limits.block_tokens if self.limits.chunked_prefill else self.limits.step_tokens

    def _propose(self, request: Request, spare: int, now_ns: int) -> list[int]:
        """Draft tokens, as many as budget, limits and free blocks allow without preemption."""
        if request.proposer is None:
            return []
        outputs_left = request.submit.max_tokens - len(request.outputs) - 1
        context_left = self.limits.max_model_tokens - request.known_tokens - 1
        count = min(self.limits.draft_tokens, spare, outputs_left, context_left)
        if count <= 0:
            return []
        drafts = request.proposer.propose(count)
        needed = blocks_for(request.computed_tokens + len(drafts), self.limits.block_tokens)
        missing = needed - len(request.blocks)
        if missing > self._pool.available - self.limits.watermark_blocks:
            return []
        self._table.grow(request, max(0, missing), now_ns)
        return drafts

    def _limit_prompts(self, builder: PlanBuilder, now_ns: int) -> None:
        """Bound the time of the step's prompts by the targets that wait for it."""
        limits, bounds = self.limits, Bounds()
        if limits.chunked_prefill and (limits.auto_budget or limits.itl_target_ns):
            bounds = self._targets.of_step(self._table, limits, now_ns)
        if bounds.tightest_ns is None:
            self.cost.unbounded()
        else:
            builder.limit_time(bounds, self.cost, self._prompts_are_overdue(now_ns), now_ns)

    def _prompts_are_overdue(self, now_ns: int) -> bool:
        """Whether a prompt that is being computed, or is next, has missed all its deadlines."""
        prompts = [r for r in self._table.running if r.in_prefill] + self._table.queue.firsts
        return any(is_overdue(request, now_ns, self.cost.prompt_token_ns) for request in prompts)

    def _plan_prefills(self, builder: PlanBuilder, now_ns: int) -> None:
        """Chunks of running prompts and new admissions, in one order of service."""
        started = [r for r in self._table.running if r.in_prefill and not r.paused]
        if not started and not self._table.queue.has_candidates:
            return  # the common case: only decodes
        key = self._sort_key(now_ns)
        pending = deque(sorted(started, key=key))
        self._hold_back(builder, now_ns)
        capped: set[str] = set()
        head = self._next_to_admit(builder, capped, now_ns)
        while pending or head is not None:
            if pending and (head is None or key(pending[0]) <= key(head)):
                request = pending.popleft()
                if not self._add_chunk(request, builder):
                    builder.skip(request, WaitReason.BUDGET)
                continue
            assert head is not None
            admitted = self._admit(head, key(head)[0], builder, now_ns)
            head = self._next_to_admit(builder, capped, now_ns) if admitted else None

    def _hold_back(self, builder: PlanBuilder, now_ns: int) -> None:
        """While sequences generate, none is admitted that came after one that has waited too long
        for memory for its adapter."""
        self._held = None
        if any(not request.paused for request in self._table.running):
            self._held = self._table.queue.held_back(now_ns)
        if self._held is not None:
            builder.skip(self._held, WaitReason.ADAPTER)

    def _next_to_admit(self, builder: PlanBuilder, capped: set[str], now_ns: int) -> Request | None:
        """The request to admit next; those of tenants at their limit are passed over."""
        limit, held = self.limits.tenant_max_seqs, self._held
        for request in self._table.queue.heads(self._sort_key(now_ns)):
            if held is not None and request.arrival > held.arrival:
                continue
            tenant = request.submit.tenant
            if limit is None or self._table.running_of(tenant) < limit:
                return request
            if tenant not in capped:
                capped.add(tenant)
                builder.skip(request, WaitReason.POLICY)
        return None

    def _admit(self, request: Request, priority: int, builder: PlanBuilder, now_ns: int) -> bool:
        match = self._table.blocks.match(request, now_ns)
        reason = self._binding_reason(request, match, builder, now_ns)
        if reason is not None:
            builder.skip(request, reason)
            return False
        builder.start(self._table.start(request, match, priority, now_ns))
        added = self._add_chunk(request, builder)
        assert added, f"{request.seq_id} was admitted without budget"
        return True

    def _binding_reason(
        self, request: Request, match: Match, builder: PlanBuilder, now_ns: int
    ) -> WaitReason | None:
        """The constraint that keeps the head of the queue waiting; None: it starts now.

        Paused sequences are preempted for it if that makes room. Budget is named last: it is
        there again in the next step, slots and blocks are not.
        """
        no_blocks = WaitReason.PREEMPTED if request.preemptions else WaitReason.KV
        if builder.preempted_for_memory:
            return no_blocks
        hits = (len(match.blocks) + len(match.host_digests)) * self.limits.block_tokens
        has_budget = self._chunk_tokens(request, request.known_tokens - hits, hits, builder) > 0
        total = blocks_for(request.known_tokens, self.limits.block_tokens)
        paused = [r for r in self._table.running if r.paused] if has_budget else []
        if len(self._table.running) - len(paused) >= self.limits.max_seqs:
            return WaitReason.SEQS
        if not self._fits(match, total, sum(len(r.blocks) for r in paused)):
            return no_blocks
        while len(self._table.running) >= self.limits.max_seqs or not self._fits(match, total):
            if not paused:
                return no_blocks  # blocks of the paused ones are shared with others
            self._preempt(paused.pop(), builder, now_ns)
        return None if has_budget else WaitReason.BUDGET

    def _fits(self, match: Match, blocks: int, reclaimable: int = 0) -> bool:
        """Whether a table of `blocks` blocks is available, if `reclaimable` more were free."""
        needed = self._prefix.cost(match, blocks)
        running = len(self._table.running)
        return fits(self.limits, needed, self._pool.available + reclaimable, running)

    def _preempt(self, victim: Request, builder: PlanBuilder, now_ns: int) -> None:
        self._table.preempt(victim, now_ns)
        builder.preempted.append(victim.seq_id)

    def _chunk_tokens(
        self, request: Request, remaining: int, context: int, builder: PlanBuilder
    ) -> int:
        """Tokens of a prompt's remainder, after `context` computed ones, that the step can take."""
        if not self.limits.chunked_prefill and remaining > builder.budget_left:
            return 0
        return builder.prompt_tokens(request, remaining, context)

    def _add_chunk(self, request: Request, builder: PlanBuilder) -> bool:
        remaining = request.prefill_tokens - request.computed_tokens
        count = self._chunk_tokens(request, remaining, request.computed_tokens, builder)
        if count:
            builder.add_prefill(request, count)
        return count > 0
