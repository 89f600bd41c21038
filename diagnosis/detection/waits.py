"""Sequences that are queued, paused or live in the engine; what those without a row wait for."""

from __future__ import annotations

from diagnosis.detection.counts import Counts
from diagnosis.detection.requests import Requests
from telemetry.facts.engine_records import SequencesListed, StepRecorded
from telemetry.facts.reasons import WaitReason


class Waits:
    """`heads` are sequences without a first row, or that lost their blocks; `paused` those whose
    client does not read."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._live: set[int] = set()
        self.heads: set[int] = set()
        self.paused: set[int] = set()

    @property
    def has_live(self) -> bool:
        """Whether the engine has a sequence whose beginning is known."""
        return bool(self._live)

    def queued(self, seq_id: int) -> None:
        self._live.add(seq_id)
        self.heads.add(seq_id)

    def pause(self, seq_id: int, at_ns: int) -> None:
        self.paused.add(seq_id)
        self._requests.skipped(seq_id, WaitReason.CLIENT_PAUSE, at_ns)

    def ended(self, seq_id: int) -> None:
        for kept in (self._live, self.heads, self.paused):
            kept.discard(seq_id)

    def listed(self, fact: SequencesListed) -> None:
        """Drop sequences whose end fact was lost."""
        for kept in (self._live, self.heads, self.paused):
            kept.difference_update(fact.over(kept))

    def clear(self) -> None:
        """The engine has restarted."""
        for kept in (self._live, self.heads, self.paused):
            kept.clear()

    def count(self, step: StepRecorded, turn_ns: int, counts: Counts) -> None:
        """Queued sequences wait for what blocks the head of the queue; running ones without a row
        wait for their own reason, and so do queued ones whose KV blocks come from elsewhere."""
        self.heads.update(step.preempted)
        for seq_id in step.preempted:
            self._requests.skipped(seq_id, WaitReason.PREEMPTED, step.committed_ns)
        head: WaitReason | None = None
        apart = 0
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
        if stopped:
            counts.skipped_ns[WaitReason.CLIENT_PAUSE] += stopped * turn_ns
        if waiting:
            reason = head or WaitReason.HEAD_OF_LINE
            counts.waited_ns[reason] += waiting * turn_ns
            counts.behind_ns[reason] += (waiting - 1) * turn_ns
