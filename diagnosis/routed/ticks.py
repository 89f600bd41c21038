"""What happened in each half second, by engine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnosis.routed.thresholds import (
    APART_TICKS,
    LEAST_PAST_TICKS,
    PAST_EVERY_TICKS,
    PAST_TICKS,
    WINDOW_TICKS,
)


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
        """Written out: a fleet of hundreds adds some ten thousand cells a second."""
        self.steps += other.steps
        self.span_ns += other.span_ns
        self.expected_ns += other.expected_ns
        self.row_span_ns += other.row_span_ns
        self.picks += other.picks
        self.others += other.others
        if other.firsts:
            self.firsts += other.firsts
        self.prompt_tokens += other.prompt_tokens
        self.hit_tokens += other.hit_tokens
        self.avoidable_tokens += other.avoidable_tokens
        self.age_ns += other.age_ns
        self.aged += other.aged
        self.restarts += other.restarts
        self.clock_steps += other.clock_steps
        self.placed += other.placed
        self.unplaced += other.unplaced

    @property
    def arrivals(self) -> int:
        return self.picks + self.others


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


class Past(NamedTuple):
    """The ticks that are compared with, and their sums by engine."""

    ticks: list[Tick]
    cells: dict[str, Cell]


class Ticks:
    """The last minutes. `now` is the tick that goes on."""

    def __init__(self) -> None:
        self.now = Tick()
        self._kept: deque[Tick] = deque(maxlen=PAST_TICKS + APART_TICKS + WINDOW_TICKS)
        self._past = Past([], {})
        self._ended = 0

    def end(self) -> None:
        """The tick is over."""
        self._kept.append(self.now)
        self.now = Tick()
        self._ended += 1

    def mark_fault(self) -> None:
        """In the tick that ended last a fault was found."""
        self._kept[-1].has_fault = True

    def recent(self) -> list[Tick]:
        """What is judged."""
        return list(self._kept)[-WINDOW_TICKS:]

    def past(self) -> Past:
        """What it is compared with; empty while there is too little. Taken anew every
        PAST_EVERY_TICKS."""
        if not self._past.ticks or self._ended % PAST_EVERY_TICKS == 0:
            before = list(self._kept)[: -(WINDOW_TICKS + APART_TICKS)]
            found = [one for one in before if not one.has_fault and one.routed]
            if len(found) < LEAST_PAST_TICKS:
                found = []
            self._past = Past(found, summed(found))
        return self._past


def summed(ticks: Iterable[Tick]) -> dict[str, Cell]:
    """The cells of these ticks added up, by engine."""
    found: dict[str, Cell] = {}
    for tick in ticks:
        for engine, cell in tick.cells.items():
            found.setdefault(engine, Cell()).add(cell)
    return found
