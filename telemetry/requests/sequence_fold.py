"""Folds the engine's facts into what happened to each sequence: chunks, tokens, waits.

Waits are derived. A sequence waits for its grammar until GrammarCompiled, for its adapter until
AdapterLoaded, and for its client between SequencePaused and SequenceResumed. Otherwise, while it is
queued, it waits behind the head of the queue: the head for its own reason, sequences of a tenant at
its limit for that limit, all others for the head. A sequence whose KV blocks come from elsewhere is
no head: it is passed over, and waits for them from KvReserved on, where its engine records that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from telemetry.clocks.boundaries import RemoteSpan
from telemetry.facts.adapter_records import AdapterEvicted, AdapterLoaded
from telemetry.facts.engine_records import (
    GrammarCompiled,
    Row,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.fleet.kv_transfer_records import KvAdmitted, KvReserved, KvSealed
from telemetry.facts.fleet.sequence_records import RemoteAdmitted, SequenceSent, TokensReceived
from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.facts.records import Fact, FactsLost
from telemetry.requests.kv_accounts import KvAccounts, KvSequenceFact
from telemetry.requests.live_sequence import Sequence
from telemetry.requests.phases import ChunkSpan, PreemptedSpan, WaitSpan
from telemetry.requests.queue_heads import Head, extend, waits_under

_OWN = (WaitReason.GRAMMAR, WaitReason.REMOTE_KV)  # of a sequence in the queue: nobody waits behind
_HEADS_KEPT = 65_536


class SequenceFold:
    """Live sequences by id. `on_gap(sequence, gap_ns, at_ns)` is called for each token but the
    first. `is_attached`: they are in an engine that is not ours."""

    def __init__(self, on_gap: Callable[[Sequence, int, int], None]) -> None:
        self._on_gap = on_gap
        self.is_attached = False
        self._sequences: dict[int, Sequence] = {}
        self._heads: deque[Head] = deque(maxlen=_HEADS_KEPT)
        self._remote: set[int] = set()  # those that wait for KV blocks from elsewhere
        self._kv = KvAccounts()

    def get(self, seq_id: int) -> Sequence:
        """The sequence; a new one if the id is not known."""
        found = self._sequences.get(seq_id)
        if found is None:
            found = self._sequences[seq_id] = Sequence(seq_id)
        return found

    def live_ids(self) -> list[int]:
        return list(self._sequences)

    def drop(self, seq_id: int) -> None:
        self._sequences.pop(seq_id, None)
        self._remote.discard(seq_id)
        self._kv.forget(seq_id)

    def queued(self, fact: SequenceQueued) -> None:
        self._kv.take(fact)
        sequence = self.get(fact.seq_id)
        sequence.queued_ns, sequence.tenant, sequence.in_queue = fact.at_ns, fact.tenant, True
        sequence.received_ns = fact.received_ns
        if sequence.received_ns is None and self.is_attached:
            sequence.received_ns = fact.at_ns  # the first that is known of it there
        sequence.awaits_adapter = fact.awaits_adapter
        if fact.constrained:
            sequence.blocked_since = (WaitReason.GRAMMAR, fact.at_ns)
        elif fact.awaits_adapter:
            sequence.blocked_since = (WaitReason.ADAPTER, fact.at_ns)
        else:
            sequence.waiting_since_ns = fact.at_ns

    def admitted(self, fact: SequenceAdmitted) -> None:
        self._account_kv(fact)
        sequence = self._sequences.get(fact.seq_id)
        if sequence is not None and sequence.admitted is None:
            sequence.admitted = fact

    def kv(self, fact: KvSequenceFact) -> None:
        """Another engine computes the prompt of the sequence, or should have."""
        self._account_kv(fact)
        sequence = self._sequences.get(fact.seq_id)
        if sequence is None:
            return
        if isinstance(fact, KvReserved):
            if sequence.waiting_since_ns is not None:
                self._close_wait(sequence, fact.at_ns)
            if sequence.blocked_since is None:
                sequence.blocked_since = (WaitReason.REMOTE_KV, fact.at_ns)
            return
        since = sequence.blocked_since
        is_reserved = since is not None and since[0] is WaitReason.REMOTE_KV
        reserved_ns = since[1] if since is not None and is_reserved else None
        if isinstance(fact, KvAdmitted):
            if sequence.scheduled_ns is None:
                sequence.scheduled_ns = fact.at_ns if reserved_ns is None else reserved_ns
            self._token(sequence, fact.at_ns)
        if reserved_ns is not None and not isinstance(fact, KvSealed):
            self._unblock(sequence, fact.at_ns)

    def compiled(self, fact: GrammarCompiled) -> Sequence | None:
        """The sequence whose grammar was compiled; None if it is not known."""
        sequence = self._sequences.get(fact.seq_id)
        if sequence is not None:
            sequence.compile_ns = fact.compile_ns
            self._unblock(sequence, fact.at_ns)
        return sequence

    def adapter_loaded(self, fact: AdapterLoaded) -> None:
        """The sequences that waited for it wait for it no more."""
        for seq_id in fact.seq_ids:
            sequence = self._sequences.get(seq_id)
            if sequence is None:
                continue
            sequence.awaits_adapter = False
            since = sequence.blocked_since
            if since is not None and since[0] is WaitReason.ADAPTER:
                self._unblock(sequence, fact.at_ns)

    def adapter_evicted(self, fact: AdapterEvicted) -> None:
        """Queued sequences wait for it again."""
        for seq_id in fact.seq_ids:
            sequence = self._sequences.get(seq_id)
            if sequence is None:
                continue
            sequence.awaits_adapter = True
            if sequence.waiting_since_ns is not None:
                self._close_wait(sequence, fact.at_ns)
            if sequence.blocked_since is None:
                sequence.blocked_since = (WaitReason.ADAPTER, fact.at_ns)

    def paused(self, seq_id: int, at_ns: int) -> None:
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return
        sequence.is_paused = True
        if sequence.blocked_since is not None:
            return
        if sequence.waiting_since_ns is not None:
            self._close_wait(sequence, at_ns)
        sequence.blocked_since = (WaitReason.CLIENT_PAUSE, at_ns)

    def resumed(self, seq_id: int, at_ns: int) -> None:
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return
        sequence.is_paused = False
        since = sequence.blocked_since
        if since is not None and since[0] is WaitReason.CLIENT_PAUSE:
            self._unblock(sequence, at_ns)

    def sent(self, fact: SequenceSent) -> None:
        """The sequence is on its way to an engine node."""
        sequence = self.get(fact.seq_id)
        sequence.sent_ns, sequence.engine = fact.at_ns, fact.engine

    def admitted_remotely(self, fact: RemoteAdmitted) -> None:
        """The news came that it is in the batch of an engine elsewhere."""
        sequence = self._sequences.get(fact.seq_id)
        if sequence is None or sequence.admitted is not None:
            return
        sequence.scheduled_ns = sequence.scheduled_ns or sequence.admitted_ns(fact)
        known, hit = fact.known_tokens, fact.hit_tokens
        sequence.admitted = SequenceAdmitted(
            fact.seq_id, fact.at_ns, 0, known, hit, 0, fact.ghost_tokens, fact.received_tokens
        )

    def tokens_came(self, fact: TokensReceived) -> None:
        """A frame of an engine node."""
        for row in fact.rows:
            sequence = self._sequences.get(row.seq_id)
            if sequence is None:
                continue
            sequence.scheduled_ns = sequence.scheduled_ns or fact.at_ns
            for _ in range(row.tokens):
                self._token(sequence, fact.at_ns)

    def step(self, step: StepRecorded) -> None:
        self._remote_waits(step)
        for seq_id in step.preempted:
            self._preempt(seq_id, step)
        for row in step.rows:
            sequence = self._sequences.get(row.seq_id)
            if sequence is not None:
                self._row(sequence, row, step)
        self._skips(step)

    def accounted(self, seq_id: int, remote: RemoteSpan | None) -> None:
        """What its node says of the sequence."""
        if (sequence := self._sequences.get(seq_id)) is not None:
            sequence.remote = remote

    def _account_kv(self, fact: Fact) -> None:
        account = self._kv.take(fact)
        if account is not None and (sequence := self._sequences.get(account.seq_id)) is not None:
            sequence.kv = account

    def ended(self, fact: SequenceEnded) -> Sequence | None:
        """Remove and return a sequence that ended in an engine of this server, or None."""
        self._account_kv(fact)
        return self.end(fact.seq_id, fact.at_ns, fact.reason)

    def end(self, seq_id: int, at_ns: int, reason: EndReason) -> Sequence | None:
        """Remove and return the sequence, which has ended; None if it is not known."""
        self._kv.forget(seq_id)
        sequence = self._sequences.pop(seq_id, None)
        if sequence is None:
            return None
        self._remote.discard(seq_id)
        self._unblock(sequence, at_ns)
        if sequence.waiting_since_ns is not None:
            self._close_wait(sequence, at_ns)
        self._close_preemption(sequence, at_ns)
        sequence.ended_ns, sequence.end_reason = at_ns, reason
        return sequence

    def end_lost(self, seq_id: int) -> Sequence | None:
        """Remove and return the sequence, whose terminal fact was lost; None if it is not known."""
        self._kv.forget(seq_id)
        sequence = self._sequences.pop(seq_id, None)
        if sequence is not None:
            sequence.is_lost, sequence.end_reason = True, EndReason.END_LOST
        return sequence

    def note_gap(self, lost: FactsLost) -> None:
        """Facts were lost: the next gap between tokens of each sequence is not measured."""
        self._kv.take(lost)
        for sequence in self._sequences.values():
            sequence.has_gap = True

    def _unblock(self, sequence: Sequence, at_ns: int) -> None:
        """The sequence's own grammar, adapter or client no longer blocks it."""
        if sequence.blocked_since is None:
            return
        reason, since_ns = sequence.blocked_since
        sequence.blocked_since = None
        if at_ns > since_ns:
            sequence.waits.append(WaitSpan(reason, None, since_ns, at_ns))
        if sequence.is_paused:
            sequence.blocked_since = (WaitReason.CLIENT_PAUSE, at_ns)
        elif sequence.in_queue and sequence.awaits_adapter:
            sequence.blocked_since = (WaitReason.ADAPTER, at_ns)
        elif sequence.in_queue:
            sequence.waiting_since_ns = at_ns

    def _preempt(self, seq_id: int, step: StepRecorded) -> None:
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            return
        sequence.in_queue = True
        if sequence.blocked_since is None:
            sequence.waiting_since_ns = step.begin_ns
        if sequence.preempted_at is None:
            sequence.preempted_at = (step.step_id, step.begin_ns)

    def _row(self, sequence: Sequence, row: Row, step: StepRecorded) -> None:
        if sequence.waiting_since_ns is not None:
            self._close_wait(sequence, step.begin_ns)
        sequence.in_queue = False
        sequence.last_step_ns = step.committed_ns
        if sequence.scheduled_ns is None:
            sequence.scheduled_ns = step.begin_ns
        if row.is_prefill:
            sequence.chunks.append(
                ChunkSpan(
                    seq_id=row.seq_id,
                    step_id=step.step_id,
                    start_ns=step.begin_ns,
                    end_ns=step.committed_ns,
                    tokens=row.tokens,
                    context_tokens=row.context_tokens,
                    recompute_tokens=row.recompute_tokens,
                    sampled=row.sampled,
                    target_ns=step.target_ns,
                )
            )
        if not row.wasted:
            for _ in range(row.sampled):
                self._token(sequence, step.committed_ns)

    def _token(self, sequence: Sequence, at_ns: int) -> None:
        if sequence.token_ns and not sequence.has_gap:
            self._on_gap(sequence, at_ns - sequence.token_ns[-1], at_ns)
        sequence.has_gap = False
        sequence.token_ns.append(at_ns)
        if sequence.preempted_at is not None:
            self._close_preemption(sequence, at_ns)

    def _skips(self, step: StepRecorded) -> None:
        head = Head(step.begin_ns, None, None)
        capped: set[str] = set()
        for skip in step.skips:
            sequence = self._sequences.get(skip.seq_id)
            if sequence is None or skip.reason is WaitReason.CLIENT_PAUSE:
                continue
            if sequence.in_queue and skip.reason in _OWN:
                continue
            if sequence.in_queue and skip.reason is WaitReason.ADAPTER:
                head = Head(step.begin_ns, skip.seq_id, skip.reason)  # later ones are held back
                continue
            if sequence.waiting_since_ns is None:
                wait = WaitSpan(skip.reason, skip.holder_seq_id, step.begin_ns, step.committed_ns)
                extend(sequence.waits, wait)
            elif skip.reason is WaitReason.POLICY:
                capped.add(sequence.tenant)
            else:
                head = Head(step.begin_ns, skip.seq_id, skip.reason)
        head = Head(head.since_ns, head.seq_id, head.reason, frozenset(capped))
        if not self._heads or not head.same_as(self._heads[-1]):
            self._heads.append(head)

    def _remote_waits(self, step: StepRecorded) -> None:
        """A sequence waits for its blocks from the first step that says so to the first that does
        not."""
        if not self._remote and all(s.reason is not WaitReason.REMOTE_KV for s in step.skips):
            return
        now = {one.seq_id for one in step.skips if one.reason is WaitReason.REMOTE_KV}
        for seq_id in self._remote - now:
            if (sequence := self._sequences.get(seq_id)) is not None:
                self._unblock(sequence, step.begin_ns)
        self._remote &= now
        for seq_id in now - self._remote:
            sequence = self._sequences.get(seq_id)
            if sequence is None or sequence.blocked_since is not None or not sequence.in_queue:
                continue
            if sequence.waiting_since_ns is not None:
                self._close_wait(sequence, step.begin_ns)
            sequence.blocked_since = (WaitReason.REMOTE_KV, step.begin_ns)
            self._remote.add(seq_id)

    def _close_wait(self, sequence: Sequence, end_ns: int) -> None:
        """End the wait, and derive its reasons from the history of the queue's head."""
        start_ns = sequence.waiting_since_ns
        assert start_ns is not None
        sequence.waiting_since_ns = None
        heads, seq_id, tenant = self._heads, sequence.seq_id, sequence.tenant
        sequence.waits.extend(waits_under(seq_id, tenant, heads, start_ns, end_ns))

    def _close_preemption(self, sequence: Sequence, end_ns: int) -> None:
        if sequence.preempted_at is not None and sequence.waiting_since_ns is None:
            step_id, start_ns = sequence.preempted_at
            sequence.preempted.append(PreemptedSpan(sequence.seq_id, step_id, start_ns, end_ns))
            sequence.preempted_at = None
