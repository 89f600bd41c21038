"""Sequences whose prompt is computed here for another engine, which gets the blocks.

Such a sequence runs as all do, and ends with its first token. How far its prompt is computed is
told after each step, so that blocks can be sent while the next chunk is computed. After its end its
blocks keep a reference until ReleaseKv; one that is cancelled or fails frees them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from service.engine.kv.prefix import PrefixCache
from service.engine.sequences.fact_log import FactLog
from service.engine.sequences.request import Request
from service.engine.sequences.sequence_table import SequenceTable
from telemetry.facts.fleet.kv_transfer_records import KvReleased


@dataclass(frozen=True, slots=True)
class KvComputed:
    """The first `tokens` tokens of a sequence's prompt are in `blocks`, its block table. After a
    preemption `tokens` begins again, in other blocks, with the same contents."""

    seq_id: int
    epoch: int
    tokens: int
    blocks: tuple[int, ...]


class SentKv:
    """Tells what can be sent, and releases what was kept."""

    def __init__(self, table: SequenceTable, prefix: PrefixCache, log: FactLog) -> None:
        self._table = table
        self._prefix = prefix
        self._log = log
        self._computed: list[KvComputed] = []

    def computed(self, request: Request, tokens: int) -> None:
        """A step has computed the first `tokens` tokens of a sequence."""
        epoch, prompt_tokens = request.submit.sends_kv, len(request.submit.prompt)
        if epoch:
            tokens = min(tokens, prompt_tokens)
            blocks = tuple(request.blocks)
            self._computed.append(KvComputed(request.seq_id, epoch, tokens, blocks))

    def take_computed(self) -> list[KvComputed]:
        """What was computed since the last call. Blocks may be read until the next plan is made,
        and longer where the sequence runs on or KvHeld was recorded for it."""
        taken, self._computed = self._computed, []
        return taken

    def release(self, epoch: int) -> None:
        """Free what is kept for a transfer; nothing happens if there is nothing."""
        blocks = self._table.held.pop(epoch, None)
        if blocks is None:
            return
        self._prefix.pool.release(blocks)
        step_id = self._log.next_step_id
        self._log.record(partial(KvReleased, step_id=step_id, epoch=epoch, blocks=len(blocks)))
