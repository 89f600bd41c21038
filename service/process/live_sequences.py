"""Records which sequences are live in the engine, so that folds can find sequences whose end was
lost.

A list is written when the engine becomes idle, once a minute, and after facts were dropped on the
way to the gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineIdled, SequencesListed
from telemetry.facts.records import Fact

EVERY_NS = 60_000_000_000


class SequenceLister:
    """Asked after each iteration of the engine loop. Sequence ids grow, so the highest submitted id
    says which sequences the engine has seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_seq_id = -1
        self._next_ns = clock.now_ns() + EVERY_NS

    def note_submitted(self, seq_id: int) -> None:
        """The engine has received a sequence."""
        self._last_seq_id = max(self._last_seq_id, seq_id)

    def due(self, facts: Sequence[Fact], live: Iterable[int], after_gap: bool) -> list[Fact]:
        """A SequencesListed if one is due, by this iteration's `facts` or by time; else nothing."""
        now_ns = self._clock.now_ns()
        is_idle = any(isinstance(fact, EngineIdled) for fact in facts)
        if not (is_idle or after_gap or now_ns >= self._next_ns):
            return []
        self._next_ns = now_ns + EVERY_NS
        return [SequencesListed(now_ns, tuple(live), self._last_seq_id)]
