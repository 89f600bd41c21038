"""Sequences that decode here, and whose prompt another engine computes.

    WAITING, awaits_kv ---AdmitKv--> ready ---a place in the batch--> RUNNING, a decode row
         |                             |
         +--FailKv, no room, pause ----+----> WAITING: its prompt is computed here

Blocks are reserved in quarantine: another engine may write them, and neither the pool nor a
sequence has them until AdmitKv, or until ReleaseKv says that no write can come any more. A sequence
that ends or gives up meanwhile leaves its blocks in quarantine.

A reservation is announced (KvReserved) only when no launched step can write into its blocks: steps
that were in flight when a block became free may still compute a row into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from service.engine.admission import Limits
from service.engine.inbox import AdmitKv, FailKv
from service.engine.kv.blocks import blocks_for
from service.engine.kv.prefix import Match, PrefixCache
from service.engine.plan import Emission
from service.engine.sequences.fact_log import FactLog, PendingFact
from service.engine.sequences.request import Request
from service.engine.sequences.sequence_table import SequenceTable
from service.engine.sequences.stopping import end_after
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvLost,
    KvRefused,
    KvReleased,
    KvReserved,
)
from telemetry.facts.records import Fact

MOST_IN_QUARANTINE = 0.5
"""Of all blocks: what is on its way must leave room for what is being generated."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks of one transfer. `blocks` come after the `hits` blocks of the sequence's prefix that
    were cached. They may be written when step `after_step` has been committed."""

    request: Request
    hits: int
    blocks: tuple[int, ...]
    after_step: int


class ReceivedKv:
    """Owns the reservations, and the order in which sequences are ready."""

    def __init__(
        self, limits: Limits, table: SequenceTable, prefix: PrefixCache, log: FactLog
    ) -> None:
        self._limits = limits
        self._table = table
        self._prefix = prefix
        self._log = log
        self._reserved: dict[int, Reservation] = {}
        self._announced: set[int] = set()
        self._ready: list[Request] = []
        self._committed_step = -1

    @property
    def waiting(self) -> list[Request]:
        """Sequences that wait for KV, in the order of their reservations."""
        return [one.request for one in self._reserved.values() if one.request.awaits_kv]

    @property
    def ready(self) -> list[Request]:
        """Sequences that have their KV and wait for a place, in the order in which it came."""
        self._ready = [request for request in self._ready if request.awaits_kv]
        return self._ready

    def reservation(self, epoch: int) -> Reservation | None:
        return self._reserved.get(epoch)

    # Commands

    def reserve(self, request: Request, now_ns: int) -> None:
        """A new sequence waits for KV: reserve blocks for its prompt and its first decode row, or
        let its prompt be computed here."""
        epoch = request.submit.receives_kv
        match = self._table.blocks.match(request, now_ns)
        hits = match.blocks
        wanted = blocks_for(len(request.submit.prompt) + 1, self._limits.block_tokens) - len(hits)
        why = self._refusal(request, Match(hits), wanted)
        if why is not None:
            self._log.record(self._fact(KvRefused, request, why=why))
            self._compute_here(request)
            return
        self._prefix.pool.retain(hits)
        request.blocks = list(hits)
        request.cached_blocks = len(hits)
        blocks = self._prefix.reserve(wanted, epoch, now_ns)
        last = self._log.next_step_id - 1
        self._reserved[epoch] = Reservation(request, len(hits), tuple(blocks), last)
        self._announce()

    def admit(self, command: AdmitKv) -> None:
        """Give a sequence its blocks and its first token. Nothing happens if it has ended or given
        up: its blocks wait for ReleaseKv."""
        reservation = self._reserved.get(command.epoch)
        request = None if reservation is None else reservation.request
        if reservation is None or request is None or not self._waits(request, command.seq_id):
            return
        self._forget(command.epoch)
        self._prefix.pool.adopt(reservation.blocks, command.epoch)
        request.blocks.extend(reservation.blocks)
        prompt_tokens = len(request.submit.prompt)
        request.advance(prompt_tokens)
        request.received_tokens = prompt_tokens - reservation.hits * self._limits.block_tokens
        self._log.record(self._fact(KvAdmitted, request))
        self._table.blocks.register_computed(request, prompt_tokens)
        request.outputs.append(command.first.token_id)
        self._table.queue.add_tokens(1)
        self._table.counters.add_decode(request.submit.tenant, 1)
        if request.proposer is not None:
            request.proposer.extend((command.first.token_id,))
        reason = end_after(request, self._limits.max_model_tokens)
        self._log.emit(Emission(request.seq_id, command.first, reason))
        if reason is not None:
            self._table.end(request, reason, emit=False)
        elif request.paused:
            self.paused(request)
        else:
            self._ready.append(request)

    def fail(self, command: FailKv) -> None:
        """Compute the prompt here. Nothing happens if the sequence has ended or does not wait."""
        reservation = self._reserved.get(command.epoch)
        if reservation is None or not self._waits(reservation.request, command.seq_id):
            return
        self._log.record(self._fact(KvLost, reservation.request, why=command.why))
        self._compute_here(reservation.request)

    def release(self, epoch: int) -> bool:
        """End a quarantine; False if there is none of that transfer. A sequence that still waits
        for the blocks does not get them."""
        reservation = self._reserved.get(epoch)
        if reservation is None:
            return False
        request = reservation.request
        if request.awaits_kv:
            self._log.record(self._fact(KvLost, request, why=KvFault.RELEASED))
            self._compute_here(request)
        self._forget(epoch)
        self._prefix.pool.end_quarantine(reservation.blocks, epoch)
        blocks, step_id = len(reservation.blocks), self._log.next_step_id
        self._log.record(partial(KvReleased, step_id=step_id, epoch=epoch, blocks=blocks))
        return True

    def paused(self, request: Request) -> None:
        """The client of a waiting sequence reads too slowly. One that has its KV gives it up, so
        that it holds no memory meanwhile; its full blocks stay cached."""
        has_kv = request.awaits_kv and request.submit.receives_kv not in self._reserved
        if has_kv:
            self._log.record(self._fact(KvLost, request, why=KvFault.PAUSED))
            self._table.give_up_blocks(request)

    def committed(self, step_id: int) -> None:
        """A step was committed, or has failed: it writes nothing any more."""
        self._committed_step = step_id
        if self._reserved:
            self._announce()

    # Parts

    def _refusal(self, request: Request, match: Match, wanted: int) -> KvFault | None:
        submit, pool, prefix = request.submit, self._prefix.pool, self._prefix
        if submit.receives_kv in self._reserved or submit.receives_kv in self._table.held:
            return KvFault.EPOCH_USED
        if submit.adapter or submit.prompt_output is not None or not submit.max_tokens:
            return KvFault.UNSUPPORTED
        if prefix.has_copies:
            return KvFault.COPIES_PENDING
        room = pool.available - sum(pool.is_cached(block) for block in match.blocks)
        if prefix.has_offload:
            room = pool.free  # an evicted block is read by the next step
        most = int(MOST_IN_QUARANTINE * pool.total)
        if wanted + self._limits.watermark_blocks > room or pool.quarantined + wanted > most:
            return KvFault.NO_ROOM
        return None

    def _announce(self) -> None:
        """Record the reservations whose blocks no launched step can write into any more."""
        for epoch, one in self._reserved.items():
            if epoch not in self._announced and one.after_step <= self._committed_step:
                self._announced.add(epoch)
                hit_tokens = one.hits * self._limits.block_tokens
                fact = self._fact(KvReserved, one.request, hit_tokens=hit_tokens)
                self._log.record(partial(fact, blocks=len(one.blocks)))

    def _waits(self, request: Request, seq_id: int) -> bool:
        return request.awaits_kv and request.seq_id == seq_id

    def _compute_here(self, request: Request) -> None:
        """The sequence goes where it would be in the queue had it never waited for KV."""
        self._table.give_up_blocks(request)
        if not request.blocked:
            self._table.queue.unblock_in_place(request)

    def _forget(self, epoch: int) -> None:
        del self._reserved[epoch]
        self._announced.discard(epoch)

    def _fact(self, fact: Callable[..., Fact], request: Request, **fields: Any) -> PendingFact:
        return partial(
            fact,
            seq_id=request.seq_id,
            step_id=self._log.next_step_id,
            epoch=request.submit.receives_kv,
            **fields,
        )
