"""Sequences that are queued, paused or live in the engine; what those without a row wait for."""

from __future__ import annotations

from diagnosis.detection.counts import Counts
from diagnosis.detection.requests import Requests
from telemetry.facts.adapter_records import AdapterEvicted, AdapterLoaded, AdapterRead
from telemetry.facts.engine_records import SequencesListed, StepRecorded
from telemetry.facts.reasons import WaitReason


class Waits:
    """`heads` are sequences without a first row, or that lost their blocks; `paused` those whose
    client does not read; `_preempted` those that lost their blocks after their first token;
    `_loading` those that wait for their adapter, with the time up to which that is counted."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._live: set[int] = set()
        self.heads: set[int] = set()
        self.paused: set[int] = set()
        self._preempted: set[int] = set()
        self._loading: dict[int, int] = {}

    @property
    def has_live(self) -> bool:
        """Whether the engine has a sequence whose beginning is known."""
        return bool(self._live)

    def queued(self, seq_id: int, for_adapter_ns: int | None = None) -> None:
        """A sequence is in the queue, and waits for its adapter from `for_adapter_ns` on."""
        self._live.add(seq_id)
        self.heads.add(seq_id)
        if for_adapter_ns is not None:
            self._loading[seq_id] = for_adapter_ns

    def computed(self, seq_id: int) -> None:
        """It has a row of its prompt, or is computed again."""
        self.heads.discard(seq_id)
        self._preempted.discard(seq_id)

    def pause(self, seq_id: int, at_ns: int) -> None:
        self.paused.add(seq_id)
        self._requests.skipped(seq_id, WaitReason.CLIENT_PAUSE, at_ns)

    def adapter(self, fact: AdapterRead | AdapterLoaded | AdapterEvicted, counts: Counts) -> None:
        """Sequences wait for an adapter, or do not any more."""
        match fact:
            case AdapterRead():
                counts.adapter_reads += 1
                counts.adapter_read_ns += fact.read_ns
            case AdapterLoaded():
                counts.adapter_loads += 1
                for seq_id in fact.seq_ids:
                    since_ns = self._loading.pop(seq_id, fact.at_ns)
                    self._waited_for_adapter(seq_id, fact.at_ns - since_ns, counts)
            case AdapterEvicted():
                counts.adapter_evictions += 1
                self._loading.update(dict.fromkeys(fact.seq_ids, fact.at_ns))

    def _waited_for_adapter(self, seq_id: int, waited_ns: int, counts: Counts) -> None:
        counts.waited_ns[WaitReason.ADAPTER] += max(0, waited_ns)
        self._requests.waited_for_adapter(seq_id, max(0, waited_ns))

    def ended(self, seq_id: int) -> None:
        self._loading.pop(seq_id, None)
        for kept in self._kept:
            kept.discard(seq_id)

    def listed(self, fact: SequencesListed) -> None:
        """Drop sequences whose end fact was lost."""
        for kept in self._kept:
            kept.difference_update(fact.over(kept))
        for seq_id in fact.over(self._loading):
            del self._loading[seq_id]

    def clear(self) -> None:
        """The engine has restarted."""
        for kept in self._kept:
            kept.clear()
        self._loading.clear()

    @property
    def _kept(self) -> tuple[set[int], ...]:
        return self._live, self.heads, self.paused, self._preempted

    def count(self, step: StepRecorded, turn_ns: int, counts: Counts) -> None:
        """Queued sequences wait for what blocks the head of the queue; running ones without a row
        wait for their own reason, and so do queued ones whose KV blocks come from elsewhere, or
        whose adapter is not placed. One that was preempted after its first token is a running one:
        its next token is late, and not its first."""
        self.heads.update(step.preempted)
        for seq_id in step.preempted:
            self._requests.skipped(seq_id, WaitReason.PREEMPTED, step.committed_ns)
            if self._requests.is_decoding(seq_id):
                self._preempted.add(seq_id)
        head: WaitReason | None = None
        apart = len(self._loading)
        for seq_id, since_ns in self._loading.items():
            self._waited_for_adapter(seq_id, step.committed_ns - since_ns, counts)
            self._loading[seq_id] = max(since_ns, step.committed_ns)
        for skip in step.skips:
            if skip.seq_id not in self.heads:
                counts.skipped_ns[skip.reason] += turn_ns
                self._requests.skipped(skip.seq_id, skip.reason, step.committed_ns)
            elif skip.reason is WaitReason.REMOTE_KV:
                counts.waited_ns[skip.reason] += turn_ns
                apart += 1
            else:
                head = head or skip.reason
        stopped = min(step.waiting, len(self.heads & self.paused))  # preempted, not read
        waiting = max(0, step.waiting - stopped - apart)
        preempted = min(waiting, len(self._preempted - self.paused))
        waiting -= preempted
        if preempted:
            counts.skipped_ns[WaitReason.PREEMPTED] += preempted * turn_ns
        if stopped:
            counts.skipped_ns[WaitReason.CLIENT_PAUSE] += stopped * turn_ns
        if waiting:
            reason = head or WaitReason.HEAD_OF_LINE
            counts.waited_ns[reason] += waiting * turn_ns
            counts.behind_ns[reason] += (waiting - 1) * turn_ns
