"""Who holds the blocks of the KV cache: sequences of slow clients, and of clients that have gone.

What a sequence holds is derived from its rows: all its tokens are in blocks until it ends or is
preempted. A block that two sequences share counts for each, so a share is an upper bound.
"""

from __future__ import annotations

from typing import NamedTuple

from diagnosis.detection.requests import Requests
from telemetry.facts.engine_records import SequencesListed, StepRecorded
from telemetry.facts.reasons import WaitReason

_SHORT = (WaitReason.KV, WaitReason.PREEMPTED)


class Held(NamedTuple):
    """One step. `slow_blocks` belong to sequences whose client was too slow at some time, and which
    so live longer; `zombie_blocks` to those whose client has disconnected. `short`: somebody
    waits for blocks, or lost some. `slow_recompute_tokens` were computed again for slow clients."""

    slow_blocks: int
    zombie_blocks: int
    short: bool
    slow_recompute_tokens: int


class Holders:
    """Follows each sequence that was paused since it was paused, and each zombie while it runs."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._slow: dict[int, int] = {}  # tokens by sequence

    def paused(self, seq_id: int) -> None:
        self._slow.setdefault(seq_id, 0)

    def ended(self, seq_id: int) -> None:
        self._slow.pop(seq_id, None)

    def listed(self, fact: SequencesListed) -> None:
        """Drop sequences whose end was lost."""
        for seq_id in fact.over(list(self._slow)):
            del self._slow[seq_id]

    def clear(self) -> None:
        """The engine has restarted."""
        self._slow.clear()

    @property
    def live(self) -> int:
        return len(self._slow)

    def step(self, step: StepRecorded, block_tokens: int) -> Held:
        """What is held in a step; its preempted sequences hold nothing afterwards."""
        slow, zombie_blocks, recompute = self._slow, 0, 0
        for row in step.rows:
            tokens = row.context_tokens + row.tokens
            if row.seq_id in slow:
                slow[row.seq_id] = tokens
                recompute += row.recompute_tokens
            elif self._requests.is_disconnected(row.seq_id, step.begin_ns):
                zombie_blocks += -(-tokens // block_tokens)
        held = Held(
            slow_blocks=sum(-(-tokens // block_tokens) for tokens in slow.values()),
            zombie_blocks=zombie_blocks,
            short=bool(step.preempted) or any(skip.reason in _SHORT for skip in step.skips),
            slow_recompute_tokens=recompute,
        )
        for seq_id in step.preempted:
            if seq_id in slow:
                slow[seq_id] = 0
        return held
