"""Moves facts from lanes to folds, off the serving path.

All folds run on one thread at a time and under one lock, so a reader that holds the lock sees
them consistent. They take facts in pieces, and the lock and the interpreter are released between
two pieces, so that a large backlog delays neither readers nor the event loop. A fold that raises
is detached and reported; the others go on (`telemetry.pump.isolation`). The time spent in each
fold is measured.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from telemetry.facts.clock import Clock, sleep_ns
from telemetry.facts.engine_records import RecordingSet, StepRecorded
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact, order_ns
from telemetry.pump.fair_lock import FairLock
from telemetry.pump.isolation import Guarded, Isolation, part_name

_INTERVAL_S = 0.05
READER_NS = 500_000_000
"""The longest time that a reader waits for a backlog; then it reads the folds as they are. A scrape
matters most when telemetry is not fast enough."""
PIECE_WEIGHT = 1024
"""The size of a piece in facts and rows of steps: all folds together take some milliseconds."""


class Fold(Protocol):
    """Anything that consumes facts."""

    def on_facts(self, facts: Sequence[Fact]) -> None: ...


@dataclass(slots=True)
class FoldCost:
    """A fold and what it has cost since the start."""

    name: str
    feed: Guarded[Sequence[Fact]]
    busy_ns: int = 0


class Pump:
    """Drains lanes into folds, by hand (`run_once`) or on a thread (`start`, `stop`).

    While `recording` is false, folds get no facts but `RecordingSet`.
    """

    def __init__(self, clock: Clock, remote_lost: Callable[[], int] = lambda: 0) -> None:
        self.lock = FairLock()
        self.recording = True
        self.isolation = Isolation(clock)
        self._clock = clock
        self._remote_lost = remote_lost
        self._lanes: list[Lane] = [self.isolation.lane]
        self._folds: list[FoldCost] = []
        self._ticks: list[Guarded[None]] = []
        self._pending: deque[Fact] = deque()  # drained and in order, not yet fed
        self._drains = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add_lane(self, lane: Lane) -> None:
        self._lanes.append(lane)

    def add_fold(self, name: str, fold: Fold) -> None:
        self._folds.append(FoldCost(name, self.isolation.guard(name, fold.on_facts, limit=1)))

    def add_tick(self, tick: Callable[[], None]) -> None:
        """Call `tick` each time the pump's thread wakes up. A thread of its own would cost more
        than most ticks do."""
        # "turn": the name of this part in phasescope_fold_errors
        guarded: Guarded[None] = self.isolation.guard(f"turn_{part_name(tick)}", lambda _: tick())
        self._ticks.append(guarded)

    @property
    def facts_lost(self) -> int:
        """Facts lost before a fold saw them, here and in the engine process."""
        return sum(lane.lost for lane in self._lanes) + self._remote_lost()

    @property
    def facts_waiting(self) -> int:
        """Facts in the lanes and in the backlog that the folds have not taken."""
        return len(self._pending) + sum(map(len, self._lanes))

    @property
    def costs(self) -> tuple[FoldCost, ...]:
        return tuple(self._folds)

    @property
    def detached(self) -> tuple[str, ...]:
        """Folds, listeners and ticks that raised and are not called any more."""
        return self.isolation.detached

    def run_once(self, within_ns: int | None = None, wait_s: float = -1) -> int:
        """Feed everything that is in the lanes now to all folds, for at most `within_ns`. Returns
        the number of facts that this call fed; another thread may have fed some. It ends early when
        the lock was not free within `wait_s` (-1: it waits).

        If the caller does not hold the lock, it is free between two pieces. All lanes are drained
        together, in the order in which they were added, the engine's before the gateway's: the
        cause of an engine's fact is then in this drain or an earlier one, and no sequence has a
        step before it was submitted.
        """
        fed, begin_ns = 0, self._clock.now_ns()
        goal: int | None = None
        while within_ns is None or self._clock.now_ns() - begin_ns <= within_ns:
            if not self.lock.acquire(timeout=wait_s):
                return fed
            try:
                goal = self._drains + 1 if goal is None else goal
                if not self._pending:
                    if self._drains >= goal:
                        return fed
                    self._drain()
                fed += self._feed_piece()
                if not self._pending and self._drains >= goal:
                    return fed
            finally:
                self.lock.release()
            sleep_ns(0)  # releases the interpreter
        return fed

    @contextmanager
    def caught_up(self) -> Iterator[None]:
        """For a reader: feed what is in the lanes now, for at most READER_NS, then hold the lock.
        The rest of a larger backlog is left to the pump's thread; `facts_waiting` is its size."""
        self.run_once(READER_NS)
        with self.lock:
            yield

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="phasescope-pump", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and feed what is left."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.run_once()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            for tick in self._ticks:
                tick(None)
            self.run_once()

    # Under the lock

    def _drain(self) -> None:
        facts = [fact for lane in self._lanes for fact in lane.drain()]
        if not self.recording:
            facts = [fact for fact in facts if isinstance(fact, RecordingSet)]
        facts.sort(key=order_ns)
        self._pending.extend(facts)
        self._drains += 1

    def _feed_piece(self) -> int:
        """Feed the next piece to every fold; returns its number of facts."""
        facts: list[Fact] = []
        weight = 0
        while self._pending and weight < PIECE_WEIGHT:
            fact = self._pending.popleft()
            weight += 1 + len(fact.rows) if isinstance(fact, StepRecorded) else 1
            facts.append(fact)
        if facts:
            for cost in self._folds:
                if not cost.feed.is_detached:
                    self._feed(cost, facts)
        return len(facts)

    def _feed(self, cost: FoldCost, facts: list[Fact]) -> None:
        begin_ns = self._clock.now_ns()
        cost.feed(facts)
        cost.busy_ns += self._clock.now_ns() - begin_ns
