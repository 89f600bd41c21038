"""What goes wrong in a twin, beside what `lab.fleet.faults` has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.fleet.faults import FleetFaults


@dataclass(frozen=True, slots=True)
class Pauses:
    """In [begin_ns, end_ns) each `every`-th step of an engine takes `factor` times as long, as of a
    process that is stopped again and again."""

    engine: str
    begin_ns: int
    end_ns: int
    every: int
    factor: float


@dataclass(frozen=True, slots=True)
class LateReports:
    """Reports that an engine (None: each of them) makes in [begin_ns, end_ns) come `late_ns` later
    than its tokens do."""

    engine: str | None
    begin_ns: int
    end_ns: int
    late_ns: int


@dataclass(frozen=True, slots=True)
class Flush:
    """An engine forgets all prefixes at `at_ns`, and says so in its reports if it reports them."""

    at_ns: int
    engine: str


@dataclass(frozen=True, slots=True)
class ClockJump:
    """From `at_ns` on the clock of an engine's node is `by_ns` ahead of what it was."""

    at_ns: int
    engine: str
    by_ns: int


@dataclass(frozen=True, slots=True)
class ClockRate:
    """In [begin_ns, end_ns) the clock of an engine's node runs faster by `ppm` (below 0: more
    slowly) than this one, as one that is slewed without a limit."""

    engine: str
    begin_ns: int
    end_ns: int
    ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFaults(FleetFaults):
    """All faults of a twin."""

    pauses: tuple[Pauses, ...] = ()
    late: tuple[LateReports, ...] = ()
    flushes: tuple[Flush, ...] = ()
    jumps: tuple[ClockJump, ...] = ()
    rates: tuple[ClockRate, ...] = ()

    def slowness(self, engine: str) -> Callable[[int], float]:
        own = tuple(one for one in self.pauses if one.engine == engine)
        if not own:
            return FleetFaults.slowness(self, engine)
        steps = 0

        def factor(now_ns: int) -> float:
            nonlocal steps
            steps += 1
            struck = (one for one in own if one.begin_ns <= now_ns < one.end_ns)
            return max((one.factor for one in struck if steps % one.every == 0), default=1.0)

        return factor

    def late_ns(self, engine: str, made_ns: int) -> int:
        """How much later a report comes."""
        struck = (
            one.late_ns
            for one in self.late
            if one.engine in (None, engine) and one.begin_ns <= made_ns < one.end_ns
        )
        return max(struck, default=0)

    def ahead_ns(self, engine: str, now_ns: int) -> int:
        """How far ahead jumps and rates have brought a node's clock."""
        jumped_ns = sum(
            one.by_ns for one in self.jumps if one.engine == engine and one.at_ns <= now_ns
        )
        ran_ns = sum(
            one.ppm * max(0, min(now_ns, one.end_ns) - one.begin_ns) // 1_000_000
            for one in self.rates
            if one.engine == engine
        )
        return jumped_ns + ran_ns
