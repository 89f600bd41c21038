"""What goes wrong in a simulated fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Death:
    """An engine's process ends; the gateway knows it `seen_after_ns` later."""

    at_ns: int
    engine: str
    seen_after_ns: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Drain:
    """Membership says that an engine drains, or (`by_report`) the engine does."""

    at_ns: int
    engine: str
    by_report: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """An engine comes, perhaps under the name of one that died."""

    at_ns: int
    engine: str


@dataclass(frozen=True, slots=True)
class Slow:
    """Steps of an engine take `factor` times as long in [begin_ns, end_ns)."""

    engine: str
    begin_ns: int
    end_ns: int
    factor: float


@dataclass(frozen=True, slots=True)
class Silence:
    """No report of an engine arrives that was made in [begin_ns, end_ns)."""

    engine: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFaults:
    """The faults of one run. With `cancel_chance` a client hangs up within `cancel_within_ns`."""

    events: tuple[Death | Drain | Join, ...] = ()
    slow: tuple[Slow, ...] = ()
    silent: tuple[Silence, ...] = ()
    cancel_chance: float = 0.0
    cancel_within_ns: int = 3_000_000_000

    def cancel_after(self, random: Random) -> int | None:
        if not self.cancel_chance or random.random() >= self.cancel_chance:
            return None
        return random.randrange(self.cancel_within_ns)

    def is_silent(self, engine: str, now_ns: int) -> bool:
        return any(
            one.engine == engine and one.begin_ns <= now_ns < one.end_ns for one in self.silent
        )

    def slowness(self, engine: str) -> Callable[[int], float]:
        """The factor by which the steps of an engine are slow, by when they begin."""
        own = tuple(one for one in self.slow if one.engine == engine)
        if not own:
            return lambda now_ns: 1.0
        return lambda now_ns: max(
            (one.factor for one in own if one.begin_ns <= now_ns < one.end_ns), default=1.0
        )
