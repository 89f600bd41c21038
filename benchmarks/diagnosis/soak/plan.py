"""What the soak runs: segments, each a server of its own under one pattern of healthy traffic."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice

from lab.drills.spec import Phases

FIRST_SEED = 9970
_EDGE_S = 55.0  # warm-up, reference and the end; what is between is as healthy
_PATTERNS = (
    ("steady", 0.2), ("bursty", 0.7), ("daily", 0.85),
    ("steady", 0.5), ("bursty", 0.85), ("daily", 0.85),
    ("steady", 0.7), ("bursty", 0.85), ("daily", 0.85),
    ("steady", 0.85), ("bursty", 0.7), ("daily", 0.85),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """One server, `load` (the most) of its capacity, for so long."""

    number: int
    pattern: str
    load: float
    seconds: float
    first_seed: int = FIRST_SEED

    @property
    def seed(self) -> int:
        return self.first_seed + self.number

    @property
    def phases(self) -> Phases:
        """Twenty seconds are for the server to learn what is usual; no alarm is counted in them."""
        edge = min(1.0, self.seconds / (2 * _EDGE_S))
        return Phases(
            warm_up_s=20 * edge,
            reference_s=20 * edge,
            fault_s=self.seconds - _EDGE_S * edge,
            recovery_s=15 * edge,
        )


def segments(count: int, seconds: float, first_seed: int = FIRST_SEED) -> list[Segment]:
    """The first `count`, every pattern before any twice."""
    chosen = enumerate(islice(cycle(_PATTERNS), count))
    return [Segment(n, pattern, load, seconds, first_seed) for n, (pattern, load) in chosen]
