"""Lists every sequence that is live in the engine, so that folds can tell who lost its end.

A list is due when the engine goes idle, once a minute, and when facts were shed on the way to the
gateway. It costs as many numbers as there are live sequences, and nothing in any other step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineIdled, SequencesListed
from telemetry.facts.records import Fact

EVERY_NS = 60_000_000_000


class SequenceLister:
    """Asked after each turn of the engine's loop. Sequences are numbered in the order in which
    they come, so the highest number that was heard says which the engine knows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_seq_id = -1
        self._next_ns = clock.now_ns() + EVERY_NS

    def heard(self, seq_id: int) -> None:
        """The engine has been handed a sequence."""
        self._last_seq_id = max(self._last_seq_id, seq_id)

    def due(self, facts: Sequence[Fact], live: Iterable[int], after_gap: bool) -> list[Fact]:
        """The list, if `facts` of the turn or the time ask for one."""
        now_ns = self._clock.now_ns()
        is_idle = any(isinstance(fact, EngineIdled) for fact in facts)
        if not (is_idle or after_gap or now_ns >= self._next_ns):
            return []
        self._next_ns = now_ns + EVERY_NS
        return [SequencesListed(now_ns, tuple(live), self._last_seq_id)]
