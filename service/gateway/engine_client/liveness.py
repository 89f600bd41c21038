"""Tells from samples of the heartbeat whether an engine is alive, and for how long it has hung.

Only time that the gateway has observed counts: when a poll is late, because the machine was
suspended or the gateway was paused, at most two poll intervals are added. So a pause of the whole
machine is not taken for a hang of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from service.process.heartbeat import HeartbeatSample

POLL_NS = 250_000_000
SILENT_NS = 2_000_000_000
"""An engine without a beat for this long is silent: four beats are missing."""
STUCK_NS = 10_000_000_000
"""An iteration may take this long, or LONG_ITERATIONS times as long as the longest before it."""
LONG_ITERATIONS = 3
PROFILED_SLOWER = 4
"""Time counts a quarter during a profile, which takes seconds to start and to write."""
_LATE_POLLS = 2


class EngineStatus(Enum):
    """What the samples say of an engine."""

    ALIVE = "alive"
    SILENT = "silent"  # no beats
    STUCK = "stuck"  # beats, but an iteration of its loop does not end
    TIMED_OUT = "timed out"  # silent or stuck for longer than the deadline


@dataclass(slots=True)
class LivenessProbe:
    """Judges one engine; with `deadline_ns` 0 it never times out. `silent_ns` is the time without a
    change of the page, `stuck_ns` the time in the current iteration of the loop."""

    deadline_ns: int
    silent_ns: int = 0
    stuck_ns: int = 0
    longest_iteration_ns: int = 0
    _last: HeartbeatSample | None = None
    _observed_ns: int = 0

    def observe(
        self, now_ns: int, sample: HeartbeatSample, is_profiled: bool = False
    ) -> EngineStatus:
        """The engine's status with this sample; to be called every POLL_NS."""
        last, self._last = self._last, sample
        passed_ns = min(now_ns - self._observed_ns, _LATE_POLLS * POLL_NS)
        passed_ns //= PROFILED_SLOWER if is_profiled else 1
        self._observed_ns = now_ns
        if last is None:
            return EngineStatus.ALIVE
        self.silent_ns = self.silent_ns + passed_ns if sample == last else 0
        if sample.busy_since_ns is not None and sample.iterations == last.iterations:
            self.stuck_ns += passed_ns
        else:
            self.longest_iteration_ns = max(self.longest_iteration_ns, self.stuck_ns)
            self.stuck_ns = 0
        return self._status()

    @property
    def hung_ns(self) -> int:
        """How long the engine has hung: silent, or else stuck."""
        return self.silent_ns if self.silent_ns >= SILENT_NS else self.stuck_ns

    def _status(self) -> EngineStatus:
        deadline_ns, patience_ns = self.deadline_ns, LONG_ITERATIONS * self.longest_iteration_ns
        if deadline_ns:
            is_late = self.stuck_ns >= max(deadline_ns, 2 * patience_ns)
            if is_late or self.silent_ns >= deadline_ns:
                return EngineStatus.TIMED_OUT
        if self.silent_ns >= SILENT_NS:
            return EngineStatus.SILENT
        limit_ns = min(STUCK_NS, deadline_ns // 2 or STUCK_NS)
        return (
            EngineStatus.STUCK
            if self.stuck_ns >= max(limit_ns, patience_ns)
            else EngineStatus.ALIVE
        )
