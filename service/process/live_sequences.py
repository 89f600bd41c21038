"""Records which sequences are live in the engine, so that folds can find sequences whose end was
lost. A gateway of engines elsewhere lists its own so.

A list is written when the engine becomes idle, once a minute, and after facts were dropped on the
way to the gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from telemetry.facts.base import space_of
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import EngineIdled, SequencesListed
from telemetry.facts.records import Fact

EVERY_NS = 60_000_000_000


class SequenceLister:
    """Asked after each iteration of the engine loop. The sequence ids of a gateway process grow, so
    the highest submitted id says which of its sequences the engine has seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[int, int] = {0: -1}  # by space
        self._next_ns = clock.now_ns() + EVERY_NS

    def note_submitted(self, seq_id: int) -> None:
        """The engine has received a sequence."""
        space = space_of(seq_id)
        self._last[space] = max(self._last.get(space, -1), seq_id)

    def due(self, facts: Sequence[Fact], live: Iterable[int], after_gap: bool) -> list[Fact]:
        """A SequencesListed if one is due, by this iteration's `facts` or by time; else nothing."""
        now_ns = self._clock.now_ns()
        is_idle = any(isinstance(fact, EngineIdled) for fact in facts)
        if not (is_idle or after_gap or now_ns >= self._next_ns):
            return []
        self._next_ns = now_ns + EVERY_NS
        first, *more = self._last.values()
        return [SequencesListed(now_ns, tuple(live), first, tuple(more))]
