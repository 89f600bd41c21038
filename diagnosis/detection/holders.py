"""Who holds the blocks of the KV cache: sequences of slow clients, and of clients that have gone.

What a sequence holds is derived from its rows: all its tokens are in blocks until it ends or is
preempted. A block that two sequences share counts for each, so a share is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from telemetry.facts.engine_records import Row, SequencesListed, StepRecorded
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
    """Follows each sequence that was paused, from then on."""

    def __init__(self) -> None:
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

    def step(self, step: StepRecorded, zombies: Iterable[Row], block_tokens: int) -> Held:
        """What is held in a step, whose `zombies` are rows of clients that have gone. Its preempted
        sequences hold nothing afterwards."""
        slow, recompute = self._slow, 0
        for row in step.rows if slow else ():
            if row.seq_id in slow:
                slow[row.seq_id] = row.context_tokens + row.tokens
                recompute += row.recompute_tokens
        left = (row.context_tokens + row.tokens for row in zombies if row.seq_id not in slow)
        held = Held(
            slow_blocks=sum(-(-tokens // block_tokens) for tokens in slow.values()),
            zombie_blocks=sum(-(-tokens // block_tokens) for tokens in left),
            short=bool(step.preempted) or any(skip.reason in _SHORT for skip in step.skips),
            slow_recompute_tokens=recompute,
        )
        for seq_id in step.preempted:
            if seq_id in slow:
                slow[seq_id] = 0
        return held
