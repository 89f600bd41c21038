"""The sequence table: live sequences, and their moves between waiting, running and ended.

The table decides nothing. The scheduler says which sequence moves; each move here keeps queue,
running set, slots, KV blocks and pending facts consistent with each other.
"""

from __future__ import annotations

from service.engine.admission import Limits
from service.engine.fairness import TenantCounters
from service.engine.kv.blocks import blocks_for
from service.engine.kv.prefix import Match, PrefixCache
from service.engine.plan import SlotStart
from service.engine.sequences.fact_log import FactLog
from service.engine.sequences.prefix_blocks import PrefixBlocks
from service.engine.sequences.queue import WaitingQueue
from service.engine.sequences.request import Request, Status
from service.engine.sequences.slot_pool import SlotPool
from telemetry.facts.reasons import EndReason, Outcome


class SequenceTable:
    """Owns `live` (by sequence id), `running` (in order of admission) and the waiting queue."""

    def __init__(self, limits: Limits, prefix: PrefixCache, log: FactLog) -> None:
        self._limits = limits
        self._prefix = prefix
        self._log = log
        self.blocks = PrefixBlocks(limits, prefix, log)
        self.slots = SlotPool(limits.max_seqs)
        self.counters = TenantCounters()
        self.counters.weights = limits.tenant_weights
        self.queue = WaitingQueue(
            limits.policy,
            self.counters,
            limits.ageing_ns,
            self._min_active_service,
            limits.slo_order,
        )
        self.running: list[Request] = []
        self.live: dict[int, Request] = {}
        self.held: dict[int, list[int]] = {}  # by transfer: blocks that are kept to be sent
        self._arrivals = 0

    def set_limits(self, limits: Limits) -> None:
        """Other limits are in force; the slots stay those of the start."""
        self._limits = limits
        self.counters.weights = limits.tenant_weights
        self.queue.set_slo_order(limits.slo_order)

    def running_of(self, tenant: str) -> int:
        """Running sequences of a tenant."""
        return sum(request.submit.tenant == tenant for request in self.running)

    @property
    def next_arrival(self) -> int:
        """The place of the next request in the order of arrival."""
        return self._arrivals + 1

    def add(self, request: Request, now_ns: int) -> None:
        """A new request joins the queue."""
        submit = request.submit
        assert submit.seq_id not in self.live, f"sequence {submit.seq_id} submitted twice"
        self._arrivals = self.next_arrival
        request.arrival, request.queued_ns = self._arrivals, now_ns
        request.awaits_grammar = submit.grammar is not None
        self.blocks.open(request)
        self.live[submit.seq_id] = request
        self.queue.push(request)
        self._log.queued(request, self.blocks.prompt_aliases(request))

    def refuse(self, request: Request, reason: EndReason, detail: str | None = None) -> None:
        """A new request ends without joining the queue. `detail`: see `FactLog.ended`."""
        self._log.refused(request.submit)
        self._log.ended(request, reason, detail=detail)

    def start(self, request: Request, match: Match, priority: int, now_ns: int) -> SlotStart:
        """Move a request from the queue to the running set, with a slot and blocks for all of
        its known tokens.

        `priority` is the class that the request counts as now, after ageing. Raises OutOfBlocks.
        """
        assert request.in_flight_samples == 0, f"{request.seq_id} starts with a token in flight"
        self.queue.remove(request)
        size = self._limits.block_tokens
        hit_blocks = len(match.blocks) + len(match.host_digests)
        request.status = Status.RUNNING
        request.slot = self.slots.take()
        request.prefill_tokens = request.known_tokens
        request.blocks = self._prefix.acquire(match, blocks_for(request.known_tokens, size), now_ns)
        request.computed_tokens = request.cached_blocks = 0
        request.advance(hit_blocks * size)
        request.cached_blocks = len(match.blocks)
        request.admitted_class = priority
        request.admitted_service = self.counters.service_of(request.submit.tenant)
        if not request.preemptions:
            fresh = request.known_tokens - request.computed_tokens
            self.counters.add_prefill(request.submit.tenant, fresh)
        self.running.append(request)
        self._log.admitted(request, len(match.host_digests) * size, match.ghost_blocks * size)
        if request.is_named:
            cached = hit_blocks + match.ghost_blocks
            self.blocks.record_sealed(request, min(cached, len(request.submit.prompt) // size))
        return self._slot_start(request)

    def start_received(self, request: Request) -> SlotStart:
        """Move a waiting request that has the KV of its whole prompt to the running set."""
        self.queue.remove(request)
        request.awaits_kv = False
        request.status = Status.RUNNING
        request.slot = self.slots.take()
        request.prefill_tokens = request.computed_tokens
        request.admitted_class = request.submit.priority
        request.admitted_service = self.counters.service_of(request.submit.tenant)
        self.running.append(request)
        self._log.admitted(request, 0, 0)
        return self._slot_start(request)

    def _slot_start(self, request: Request) -> SlotStart:
        submit = request.submit
        assert request.slot is not None
        return SlotStart(
            slot=request.slot,
            seq_id=request.seq_id,
            sampling=submit.sampling,
            prompt=submit.prompt,
            outputs=tuple(request.outputs),
            min_tokens=submit.min_tokens,
            end_token_ids=(*submit.end_token_ids, *submit.stop_token_ids),
            grammar=submit.grammar,
            adapter=submit.adapter,
            prompt_output=submit.prompt_output,
        )

    def grow(self, request: Request, blocks: int, now_ns: int) -> None:
        """Append `blocks` blocks to a running request's table. Raises OutOfBlocks."""
        request.blocks.extend(self._prefix.grow(blocks, now_ns))

    def preempt(self, request: Request, now_ns: int) -> None:
        """Move a running request back to the head of its tenant's queue. Its blocks are free, and
        stay cached until they are needed."""
        self._leave_running(request)
        request.queued_ns = now_ns
        request.status = Status.WAITING
        request.computed_tokens = request.prefill_tokens = 0
        request.cached_blocks = request.received_tokens = 0
        request.preemptions += 1
        self.queue.push(request, first=True)

    def end(
        self, request: Request, reason: EndReason, emit: bool = True, detail: str | None = None
    ) -> None:
        """Remove a live request and free its slot and blocks. `emit` and `detail`: see
        `FactLog.ended`."""
        if request.status is Status.RUNNING:
            if self._is_to_be_sent(request, reason):
                self._hold(request)
            self._leave_running(request)
        else:
            self.queue.remove(request)
            self.give_up_blocks(request)
        request.status = Status.ENDED
        del self.live[request.seq_id]
        self._log.ended(request, reason, emit, detail)

    def give_up_blocks(self, request: Request) -> None:
        """Free what a waiting request has of KV that came from elsewhere; what is cached stays."""
        self._prefix.pool.release(request.blocks)
        request.blocks = []
        request.awaits_kv = False
        request.computed_tokens = request.cached_blocks = request.received_tokens = 0

    def check(self) -> None:
        """Walk all state; raises AssertionError with the numbers when it is inconsistent."""
        tables = [request.blocks for request in self.live.values()]
        self._prefix.pool.check([*tables, *self.held.values()])
        self._prefix.check()
        waiting = list(self.queue)
        assert len(self.live) == len(self.running) + len(waiting), "a live request is nowhere"
        assert len(self.queue) == len(waiting), f"{len(self.queue)} counted, {len(waiting)} wait"
        self.slots.check([r.slot for r in self.running if r.slot is not None])
        tokens = sum(request.known_tokens for request in waiting)
        assert tokens == self.queue.tokens, f"{tokens} tokens wait, {self.queue.tokens} counted"

    def _min_active_service(self, request: Request) -> float | None:
        """The least service of a tenant that `request` competes with: of those in prefill, as it
        was when they were admitted, and of waiting tenants that are not at their limit."""
        limit = self._limits.tenant_max_seqs
        waiting = self.queue.min_service(
            request.submit.priority, lambda t: limit is None or self.running_of(t) < limit
        )
        active = [
            r.admitted_service
            for r in self.running
            if r.in_prefill and not r.paused and r.admitted_class <= request.submit.priority
        ]
        return min([*active, *([] if waiting is None else [waiting])], default=None)

    def _is_to_be_sent(self, request: Request, reason: EndReason) -> bool:
        epoch = request.submit.sends_kv
        return epoch > 0 and epoch not in self.held and reason.outcome is Outcome.FINISHED

    def _hold(self, request: Request) -> None:
        """Keep the blocks of a sequence that ends, to be sent to another engine."""
        epoch = request.submit.sends_kv
        self.held[epoch] = list(request.blocks)
        self._prefix.pool.retain(request.blocks)
        self._log.held(request.seq_id, epoch, len(request.blocks))

    def _leave_running(self, request: Request) -> None:
        """Free slot and blocks."""
        assert request.slot is not None
        self.running.remove(request)
        self._prefix.pool.release(request.blocks)
        self.slots.release(request.slot)
        request.blocks = []
        request.slot = None
