"""Tells from the signs of a heartbeat whether an engine lives, and for how long it has not.

Time counts only as far as whoever looks has looked: of a turn of its own that came late, because
the machine was suspended or the gateway itself stood still, no more is counted than a turn is
long. So a pause of everybody is not blamed on the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from service.process.heartbeat import Signs

LOOK_NS = 250_000_000
SILENT_NS = 2_000_000_000
"""Without a beat for so long, an engine is taken to be hung: of four beats none came."""
STUCK_NS = 10_000_000_000
"""A turn of the loop may take so long, or LONG_TURNS times as long as the longest before it."""
LONG_TURNS = 3
PROFILED_SLOWER = 4
"""A profile is begun and written between two steps, which takes seconds: time counts less then."""
_LATE_LOOKS = 2


class Life(Enum):
    """What is thought of an engine."""

    LIVES = "lives"
    SILENT = "silent"  # its heartbeat has ended
    STUCK = "stuck"  # its heart beats, and a turn of its loop does not end
    GIVEN_UP = "given up"  # either, for longer than the deadline


@dataclass(slots=True)
class Liveness:
    """One engine's; `deadline_ns` 0 never gives it up. `silent_ns` is the time without any sign,
    `stuck_ns` that in the present turn of its loop."""

    deadline_ns: int
    silent_ns: int = 0
    stuck_ns: int = 0
    longest_turn_ns: int = 0
    _last: Signs | None = None
    _looked_ns: int = 0

    def look(self, now_ns: int, signs: Signs, is_profiled: bool = False) -> Life:
        """To be called every LOOK_NS."""
        last, self._last = self._last, signs
        passed_ns = min(now_ns - self._looked_ns, _LATE_LOOKS * LOOK_NS)
        passed_ns //= PROFILED_SLOWER if is_profiled else 1
        self._looked_ns = now_ns
        if last is None:
            return Life.LIVES
        self.silent_ns = self.silent_ns + passed_ns if signs == last else 0
        if signs.busy_since_ns is not None and signs.turns == last.turns:
            self.stuck_ns += passed_ns
        else:
            self.longest_turn_ns = max(self.longest_turn_ns, self.stuck_ns)
            self.stuck_ns = 0
        return self._judge()

    @property
    def hung_ns(self) -> int:
        """For how long it has done nothing, by whichever sign."""
        return self.silent_ns if self.silent_ns >= SILENT_NS else self.stuck_ns

    def _judge(self) -> Life:
        deadline_ns, patience_ns = self.deadline_ns, LONG_TURNS * self.longest_turn_ns
        if deadline_ns:
            is_late = self.stuck_ns >= max(deadline_ns, 2 * patience_ns)
            if is_late or self.silent_ns >= deadline_ns:
                return Life.GIVEN_UP
        if self.silent_ns >= SILENT_NS:
            return Life.SILENT
        limit_ns = min(STUCK_NS, deadline_ns // 2 or STUCK_NS)
        return Life.STUCK if self.stuck_ns >= max(limit_ns, patience_ns) else Life.LIVES
