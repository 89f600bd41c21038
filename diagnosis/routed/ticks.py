"""What happened in each half second, by engine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from diagnosis.routed.thresholds import APART_TICKS, LEAST_PAST_TICKS, PAST_TICKS, WINDOW_TICKS


@dataclass(slots=True)
class First:
    """A first token came, after `wait_ns` that its own prompt does not explain."""

    request_id: str
    wait_ns: int


@dataclass(slots=True)
class Cell:
    """One engine in one tick, or in several: sums. `row_span_ns` is the time of rows in steps,
    `age_ns` the age of what was known of it, as often as `aged`."""

    steps: int = 0
    span_ns: int = 0
    expected_ns: float = 0.0
    row_span_ns: int = 0
    picks: int = 0
    others: int = 0
    firsts: list[First] = field(default_factory=list)
    prompt_tokens: int = 0
    hit_tokens: int = 0
    avoidable_tokens: int = 0
    age_ns: int = 0
    aged: int = 0
    restarts: int = 0
    clock_steps: int = 0
    placed: int = 0
    unplaced: int = 0

    def add(self, other: Cell) -> None:
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.firsts += other.firsts

    @property
    def arrivals(self) -> int:
        return self.picks + self.others


_SUMMED = tuple(name for name in Cell.__slots__ if name != "firsts")


@dataclass(slots=True)
class Tick:
    """`picks` counts choices by prefix and engine. In a tick with a fault nothing is usual."""

    cells: dict[str, Cell] = field(default_factory=dict)
    picks: Counter[tuple[int, str]] = field(default_factory=Counter)
    routed: int = 0
    has_fault: bool = False

    def cell(self, engine: str) -> Cell:
        found = self.cells.get(engine)
        if found is None:
            found = self.cells[engine] = Cell()
        return found


class Ticks:
    """The last minutes. `now` is the tick that goes on."""

    def __init__(self) -> None:
        self.now = Tick()
        self._kept: deque[Tick] = deque(maxlen=PAST_TICKS + APART_TICKS + WINDOW_TICKS)

    def end(self) -> None:
        """The tick is over."""
        self._kept.append(self.now)
        self.now = Tick()

    def mark_fault(self) -> None:
        """In the tick that ended last a fault was found."""
        self._kept[-1].has_fault = True

    def recent(self) -> list[Tick]:
        """What is judged."""
        return list(self._kept)[-WINDOW_TICKS:]

    def past(self) -> list[Tick]:
        """What it is compared with; empty while there is too little."""
        before = list(self._kept)[: -(WINDOW_TICKS + APART_TICKS)]
        found = [one for one in before if not one.has_fault and one.routed]
        return found if len(found) >= LEAST_PAST_TICKS else []


def summed(ticks: Iterable[Tick]) -> dict[str, Cell]:
    """By engine."""
    found: dict[str, Cell] = {}
    for tick in ticks:
        for engine, cell in tick.cells.items():
            found.setdefault(engine, Cell()).add(cell)
    return found
