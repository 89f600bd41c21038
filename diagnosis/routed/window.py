"""The last seconds of a fleet, beside the time that they are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from diagnosis.routed.thresholds import (
    LATE_NS,
    LEAST_FIRSTS,
    LEAST_PACE_STEPS,
    LEAST_PACE_TICKS,
    SLOW_IN_TICK,
)
from diagnosis.routed.ticks import Cell, First, Past, Tick, summed
from telemetry.numbers.quantiles import median


class Window:
    """Sums by engine: `cells` of the window, `past` of the time before, empty without history.
    `engines` are those that are there now. Where `usual_wait_ns` is not known it is None, and no
    first token is late."""

    def __init__(self, recent: Sequence[Tick], past: Past, engines: Collection[str]) -> None:
        self.recent, self.past_ticks = recent, past.ticks
        self.engines = engines
        self.cells = {name: cell for name, cell in summed(recent).items() if name in engines}
        self.past = past.cells
        self.routed = sum(tick.routed for tick in recent)
        self.usual_wait_ns = mean_wait_ns(self.past.values())

    @property
    def has_history(self) -> bool:
        return bool(self.past_ticks)

    # Steps

    def factor(self, engine: str) -> float | None:
        """The length of an engine's steps over that of the others' of equal size; None: too few
        steps, or no others."""
        return relative(engine, self.cells)

    def slower_share(self, engine: str) -> float:
        """The share of the ticks in which the engine was slower by SLOW_IN_TICK, of those in which
        its pace and others' are known: a single long step is in one of them. 0 of too few ticks."""
        found = [relative(engine, tick.cells, 1) for tick in self.recent]
        known = [one for one in found if one is not None]
        if len(known) < LEAST_PACE_TICKS:
            return 0.0
        return sum(one >= SLOW_IN_TICK for one in known) / len(known)

    def usual_factor(self, engine: str) -> float | None:
        return relative(engine, self.past)

    # Waits

    def late_ns(self, first: First) -> int | None:
        """How much later than usual a first token is, in ns; None: what is usual is not known."""
        if self.usual_wait_ns is None:
            return None
        late_ns = first.wait_ns - self.usual_wait_ns
        return int(late_ns) if late_ns > LATE_NS else 0

    def late(self, engine: str | None = None) -> list[tuple[First, int]]:
        """First tokens that were late at an engine, or (None) at any, the latest first; none where
        that is not known."""
        cells = self.cells.values() if engine is None else (self.cells[engine],)
        found = [
            (first, late_ns)
            for cell in cells
            for first in cell.firsts
            if (late_ns := self.late_ns(first))
        ]
        return sorted(found, key=lambda one: -one[1])

    def late_count(self, late: Sequence[tuple[First, int]]) -> int | None:
        """How many these are, as evidence; None: not known."""
        return None if self.usual_wait_ns is None else len(late)

    def wait_ns(self, engine: str) -> float | None:
        """The mean wait at an engine; None: of too few."""
        cell = self.cells.get(engine)
        return None if cell is None else mean_wait_ns((cell,))

    def others_wait_ns(self, engine: str) -> float | None:
        return mean_wait_ns(cell for name, cell in self.cells.items() if name != engine)

    # Prefixes

    def picks_of(self, prefix: int) -> Counter[str]:
        """How many requests below a prefix went to each engine."""
        found: Counter[str] = Counter()
        for tick in self.recent:
            for (one, engine), count in tick.picks.items():
                if one == prefix:
                    found[engine] += count
        return found

    def hottest(self) -> tuple[int, int] | None:
        """The prefix that most requests have, and how many."""
        found: Counter[int] = Counter()
        for tick in self.recent:
            for (prefix, _), count in tick.picks.items():
                found[prefix] += count
        return found.most_common(1)[0] if found else None

    def usual_share(self, prefix: int) -> float | None:
        """The share of the requests before that had this prefix; None without history."""
        routed = sum(tick.routed for tick in self.past_ticks)
        if not routed:
            return None
        own = sum(
            count
            for tick in self.past_ticks
            for (one, _), count in tick.picks.items()
            if one == prefix
        )
        return own / routed


def mean_wait_ns(cells: Iterable[Cell]) -> float | None:
    waits = [first.wait_ns for cell in cells for first in cell.firsts]
    return sum(waits) / len(waits) if len(waits) >= LEAST_FIRSTS else None


def relative(
    engine: str, cells: dict[str, Cell], least_steps: int = LEAST_PACE_STEPS
) -> float | None:
    """The pace of an engine over the median of the others'."""
    paces = {
        name: cell.span_ns / cell.expected_ns
        for name, cell in cells.items()
        if cell.steps >= least_steps and cell.expected_ns > 0
    }
    own = paces.pop(engine, None)
    others = median(paces.values())
    return None if own is None or not others else own / others
