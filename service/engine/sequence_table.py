"""Everybody who is in the engine, and the moves between waiting, running and ended.

The one owner of live requests, of the executor's slots and, through the prefix cache, of
the blocks. It decides nothing: the scheduler says who moves, and each move here keeps
slots, blocks, queue and news in step with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from service.engine.admission import Limits
from service.engine.fairness import ServiceLedger
from service.engine.inbox import Submit
from service.engine.kv.block_aliases import BlockNames
from service.engine.kv.blocks import blocks_for
from service.engine.kv.cpu_offload import HostTier
from service.engine.kv.prefix import Match, PrefixCache
from service.engine.plan import Emission, SlotStart
from service.engine.queue import WaitingQueue
from service.engine.request import Request, Status
from telemetry.facts.engine_records import (
    BlocksSealed,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequenceRefused,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact

News = Callable[..., Fact]

_NAMED_AT_ONCE = 512
_DIGESTED_AT_ONCE = 64
_NAMES_A_BLOCK = 6  # the cache itself, four times as many ghosts, and some


class Residents:
    """Live requests and what they hold."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        host = HostTier(limits.host_slots, limits.retention) if limits.host_slots else None
        self.prefix = PrefixCache(
            limits.blocks_total,
            limits.block_tokens,
            limits.cache_identity,
            host,
            limits.prefix_cache,
        )
        self.pool = self.prefix.pool
        self._names = BlockNames(_NAMES_A_BLOCK * (limits.blocks_total + limits.host_slots))
        self.ledger = ServiceLedger()
        self.queue = WaitingQueue(limits.policy, self.ledger, limits.ageing_ns, self._floor)
        self.running: list[Request] = []
        self.live: dict[int, Request] = {}
        self.next_step_id = 0
        self._free_slots = list(range(limits.max_seqs - 1, -1, -1))
        self._stopped_slots: list[int] = []
        self._news: list[News] = []
        self._emissions: list[Emission] = []
        self._filled: list[BlocksSealed] = []
        self._arrivals = 0

    # Moves

    def enter(self, request: Request, now_ns: int) -> None:
        """A new request joins the queue."""
        submit = request.submit
        assert submit.seq_id not in self.live, f"sequence {submit.seq_id} submitted twice"
        self._arrivals += 1
        request.arrival, request.queued_ns = self._arrivals, now_ns
        request.awaits_grammar = submit.grammar is not None
        if submit.cache_prefix and self.prefix.enabled:
            request.cache_root = self.prefix.root(f"{submit.tenant}\0{submit.cache_salt}")
        self.live[submit.seq_id] = request
        self.queue.push(request)
        blocks = self._prompt_blocks(request)
        self.tell(partial(SequenceQueued, blocks=blocks, **self._entry(submit)))

    def refuse(self, request: Request, reason: EndReason) -> None:
        """The queue does not take it."""
        self.tell(partial(SequenceRefused, **self._entry(request.submit)))
        self.report_end(request, reason)

    def match(self, request: Request, now_ns: int) -> Match:
        """What the prefix cache has of a waiting request; its last token is always computed,
        because its logits are wanted."""
        if not request.cacheable:
            return Match()
        blocks = (request.known_tokens - 1) // self._limits.block_tokens
        return self.prefix.match(self._digests(request, blocks), now_ns)

    def of_tenant(self, tenant: str) -> int:
        """Running sequences of a tenant."""
        return sum(request.submit.tenant == tenant for request in self.running)

    def start(self, request: Request, match: Match, priority: int, now_ns: int) -> SlotStart:
        """From the queue into the running set: a slot, and blocks for all known tokens.

        `priority` is the class that the request counts as now.
        """
        assert request.in_flight_samples == 0, f"{request.seq_id} starts with a token in flight"
        self.queue.remove(request)
        size = self._limits.block_tokens
        hit_blocks = len(match.blocks) + len(match.host_digests)
        request.status = Status.RUNNING
        request.slot = self._free_slots.pop()
        request.prefill_tokens = request.known_tokens
        request.blocks = self.prefix.acquire(match, blocks_for(request.known_tokens, size), now_ns)
        request.computed_tokens = request.cached_blocks = 0
        request.advance(hit_blocks * size)
        request.cached_blocks = len(match.blocks)
        request.admitted_class = priority
        request.admitted_service = self.ledger.service_of(request.submit.tenant)
        if not request.preemptions:
            fresh = request.known_tokens - request.computed_tokens
            self.ledger.prefilled(request.submit.tenant, fresh)
        self.running.append(request)
        self._tell_admitted(request, match)
        submit = request.submit
        if request.cacheable:
            known = hit_blocks + match.ghost_blocks
            self._note_filled(request, min(known, len(submit.prompt) // size))
        return SlotStart(
            slot=request.slot,
            seq_id=request.seq_id,
            sampling=submit.sampling,
            prompt=submit.prompt,
            outputs=tuple(request.outputs),
            min_tokens=submit.min_tokens,
            end_token_ids=(*submit.end_token_ids, *submit.stop_token_ids),
            grammar=submit.grammar,
        )

    def grow(self, request: Request, blocks: int, now_ns: int) -> None:
        request.blocks.extend(self.prefix.grow(blocks, now_ns))

    def preempt(self, request: Request, now_ns: int) -> None:
        """Back to the head of its queue; what it had computed stays cached while it can."""
        self._leave_running(request)
        request.queued_ns = now_ns
        request.status = Status.WAITING
        request.computed_tokens = request.prefill_tokens = request.cached_blocks = 0
        request.preemptions += 1
        self.queue.push(request, first=True)

    def end(
        self, request: Request, reason: EndReason, emit: bool = True, detail: str | None = None
    ) -> None:
        """Out of the engine, whatever it held given back."""
        if request.status is Status.RUNNING:
            self._leave_running(request)
        else:
            self.queue.remove(request)
        request.status = Status.ENDED
        del self.live[request.seq_id]
        self.report_end(request, reason, emit, detail)

    def computed(self, request: Request, tokens: int) -> None:
        """The first `tokens` tokens are in the cache for certain: offer their full blocks."""
        blocks = tokens // self._limits.block_tokens
        if not request.cacheable or blocks <= request.cached_blocks:
            return
        self._digest(request, blocks)
        for index in range(request.cached_blocks, blocks):
            digest, block = request.digests[index], request.blocks[index]
            self.prefix.register(digest, block, request.submit.tenant)
        self._note_filled(request, blocks)
        request.cached_blocks = blocks

    # What is to be told

    def report_end(
        self, request: Request, reason: EndReason, emit: bool = True, detail: str | None = None
    ) -> None:
        """The one terminal fact, and the word to whoever waits for the sequence."""
        self.tell(
            partial(
                SequenceEnded,
                seq_id=request.seq_id,
                step_id=self.next_step_id,
                reason=reason,
                output_tokens=len(request.outputs),
                preemptions=request.preemptions,
            )
        )
        if emit:
            self.emit(Emission(request.seq_id, None, reason, detail))

    def tell(self, news: News) -> None:
        """A fact that lacks only its stamp."""
        self._news.append(news)

    def emit(self, emission: Emission) -> None:
        self._emissions.append(emission)

    def take_facts(self, now_ns: int) -> list[Fact]:
        taken, self._news = self._news, []
        return [news(at_ns=now_ns) for news in taken]

    def take_emissions(self) -> list[Emission]:
        taken, self._emissions = self._emissions, []
        return taken

    def take_filled(self) -> tuple[BlocksSealed, ...]:
        """Names of blocks that became full since the last call."""
        if not self._filled:
            return ()
        taken, self._filled = tuple(self._filled), []
        return taken

    def take_stopped_slots(self) -> tuple[int, ...]:
        taken, self._stopped_slots = tuple(self._stopped_slots), []
        return taken

    def check(self) -> None:
        """Walk all bookkeeping; raises AssertionError with the numbers when it is wrong."""
        self.pool.check(request.blocks for request in self.live.values())
        self.prefix.check()
        waiting = list(self.queue)
        assert len(self.live) == len(self.running) + len(waiting), "a live request is nowhere"
        assert len(self.queue) == len(waiting), f"{len(self.queue)} counted, {len(waiting)} wait"
        slots = [request.slot for request in self.running]
        assert len(set(slots)) == len(slots), "two sequences share a slot"
        assert len(self._free_slots) + len(slots) == self._limits.max_seqs, "a slot is lost"
        tokens = sum(request.known_tokens for request in waiting)
        assert tokens == self.queue.tokens, f"{tokens} tokens wait, {self.queue.tokens} counted"

    def _entry(self, submit: Submit) -> dict[str, Any]:
        """What is told of a submission, taken or not."""
        return {
            "seq_id": submit.seq_id,
            "step_id": self.next_step_id,
            "prompt_tokens": len(submit.prompt),
            "max_tokens": submit.max_tokens,
            "tenant": submit.tenant,
            "priority": submit.priority,
            "deadline_ns": submit.deadline_ns,
            "constrained": submit.grammar is not None,
        }

    def _note_filled(self, request: Request, blocks: int) -> None:
        """Names of what is cached for the first time."""
        first = len(request.told_names)
        if first < blocks:
            self._filled.append(BlocksSealed(request.seq_id, first, self._named(request, blocks)))

    def _prompt_blocks(self, request: Request) -> tuple[int, ...] | None:
        """Names of the prompt's blocks, of a long one's first; the others are named as they are
        found or computed."""
        if not request.cacheable:
            return None
        blocks = min(_NAMED_AT_ONCE, len(request.submit.prompt) // self._limits.block_tokens)
        self._digest(request, blocks)
        return self._named(request, blocks)

    def _digests(self, request: Request, blocks: int) -> Iterator[bytes]:
        """Of the first `blocks` blocks, made as far as they are asked for: who finds nothing in
        the cache hashes no long prompt."""
        for index in range(blocks):
            if index >= len(request.digests):
                self._digest(request, min(blocks, index + _DIGESTED_AT_ONCE))
            yield request.digests[index]

    def _digest(self, request: Request, blocks: int) -> None:
        """Digests of the first `blocks` blocks; only those are made that are not there yet."""
        missing = blocks - len(request.digests)
        if missing > 0:
            size = self._limits.block_tokens
            tokens = request.tokens(len(request.digests) * size, missing * size)
            self.prefix.extend(request.digests, request.cache_root, tokens)

    def _named(self, request: Request, blocks: int) -> tuple[int, ...]:
        """Names of those of the first `blocks` blocks that have none yet."""
        told = request.told_names
        fresh = self._names.of(request.digests[len(told) : blocks], told[-1] if told else None)
        told += fresh
        return fresh

    def _floor(self, request: Request) -> int | None:
        """The service of whoever is served next: of prompts being computed, at the time when
        they were admitted, and of waiting tenants that are not at their limit."""
        limit = self._limits.tenant_max_seqs
        waiting = self.queue.floor(
            request.submit.priority, lambda t: limit is None or self.of_tenant(t) < limit
        )
        floors = [
            r.admitted_service
            for r in self.running
            if r.in_prefill and not r.paused and r.admitted_class <= request.submit.priority
        ]
        return min([*floors, *([] if waiting is None else [waiting])], default=None)

    def _leave_running(self, request: Request) -> None:
        """Give back slot and blocks."""
        assert request.slot is not None
        self.running.remove(request)
        self.pool.release(request.blocks)
        self._free_slots.append(request.slot)
        self._stopped_slots.append(request.slot)
        request.blocks = []
        request.slot = None

    def _tell_admitted(self, request: Request, match: Match) -> None:
        size = self._limits.block_tokens
        self.tell(
            partial(
                SequenceAdmitted,
                seq_id=request.seq_id,
                step_id=self.next_step_id,
                known_tokens=request.known_tokens,
                hit_tokens=request.computed_tokens,
                host_tokens=len(match.host_digests) * size,
                ghost_tokens=match.ghost_blocks * size,
            )
        )
