"""Folds the choice of where a prompt is computed, and what came of it, into regret: how much longer
the way that was taken took than the other was predicted to take. 0 where it was not longer.

Of a local prompt the harm to the sequences that decode there belongs to both sides of the
comparison, as it was predicted. All stamps are of the engine that decodes.
"""

from __future__ import annotations

import msgspec

from telemetry.facts.engine_records import SequenceEnded, SequenceQueued, StepRecorded
from telemetry.facts.fleet.kv_transfer_records import KvAdmitted, KvSplitChosen, Way
from telemetry.facts.records import Fact


class SplitOutcome(msgspec.Struct, frozen=True):
    """`took_ns` until the first token, `predicted_ns` for the way that was taken, and the regret. A
    remote prompt that was computed here after all has `way` remote and all the time it took."""

    seq_id: int
    way: Way
    took_ns: int
    predicted_ns: int
    regret_ns: int


class SplitRegret:
    """Takes facts in their order; gives an outcome at the first token of a sequence."""

    def __init__(self) -> None:
        self._chosen: dict[int, KvSplitChosen] = {}
        self._queued_ns: dict[int, int] = {}

    @property
    def open(self) -> int:
        """Sequences without their first token. While there are none steps say nothing here."""
        return len(self._chosen)

    def take(self, fact: Fact) -> list[SplitOutcome]:
        match fact:
            case KvSplitChosen():
                self._chosen[fact.seq_id] = fact
            case SequenceQueued() if fact.seq_id in self._chosen:
                self._queued_ns[fact.seq_id] = fact.at_ns
            case KvAdmitted():
                return self._first_token(fact.seq_id, fact.at_ns)
            case StepRecorded() if self._chosen:
                sampled = [row.seq_id for row in fact.rows if row.sampled and not row.wasted]
                return [o for s in sampled for o in self._first_token(s, fact.committed_ns)]
            case SequenceEnded():
                self._chosen.pop(fact.seq_id, None)
                self._queued_ns.pop(fact.seq_id, None)
            case _:
                pass
        return []

    def _first_token(self, seq_id: int, at_ns: int) -> list[SplitOutcome]:
        chosen, queued_ns = self._chosen.pop(seq_id, None), self._queued_ns.pop(seq_id, None)
        if chosen is None or queued_ns is None:
            return []
        took_ns = at_ns - queued_ns
        local_ns = chosen.local_ns + chosen.harm_ns
        if chosen.way is Way.REMOTE:
            predicted_ns, cost_ns, other_ns = chosen.remote_ns, took_ns, local_ns
        else:
            predicted_ns, cost_ns = chosen.local_ns, took_ns + chosen.harm_ns
            other_ns = chosen.remote_ns
        regret_ns = max(0, cost_ns - other_ns)
        return [SplitOutcome(seq_id, chosen.way, took_ns, predicted_ns, regret_ns)]
