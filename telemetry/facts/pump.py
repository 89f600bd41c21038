"""Moves facts from lanes to folds, off the serving path.

All folds run on one thread at a time and under one lock, so a reader that holds the lock sees
them in agreement. They are fed a piece at a time, and the lock and the interpreter are let go of
between two pieces: a large backlog holds up neither readers nor the event loop. A fold that
raises is detached and reported; the others go on (`telemetry.facts.isolation`). What each fold
costs is measured.
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
from telemetry.facts.fair_lock import FairLock
from telemetry.facts.isolation import Guarded, Isolation, part_name
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact, fact_ns

_INTERVAL_S = 0.05
READER_NS = 500_000_000
"""A reader waits so long for a backlog to be worked off, and then takes what there is: a scrape is
wanted most when telemetry is not fast enough."""
PIECE_WEIGHT = 1024
"""Facts in a piece, each row of a step counted as one: what all folds take in some milliseconds."""


class Fold(Protocol):
    """Anything that consumes facts."""

    def on_facts(self, facts: Sequence[Fact]) -> None: ...


@dataclass(slots=True)
class FoldCost:
    """What a fold has cost so far."""

    name: str
    feed: Guarded[Sequence[Fact]]
    facts: int = 0
    busy_ns: int = 0


class Pump:
    """Drains lanes into folds, by hand (`run_once`) or on a thread (`start`, `stop`).

    While `recording` is false folds are fed nothing; what came is counted in `facts_skipped`.
    """

    def __init__(self, clock: Clock, remote_lost: Callable[[], int] = lambda: 0) -> None:
        self.lock = FairLock()
        self.recording = True
        self.facts_skipped = 0
        self.isolation = Isolation(clock)
        self._clock = clock
        self._remote_lost = remote_lost
        self._lanes: list[Lane] = [self.isolation.lane]
        self._folds: list[FoldCost] = []
        self._turns: list[Guarded[None]] = []
        self._pending: deque[Fact] = deque()  # drained and in order, not yet fed
        self._drains = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add_lane(self, lane: Lane) -> None:
        self._lanes.append(lane)

    def add_fold(self, name: str, fold: Fold) -> None:
        self._folds.append(FoldCost(name, self.isolation.guard(name, fold.on_facts, limit=1)))

    def add_turn(self, turn: Callable[[], None]) -> None:
        """Call `turn` each time the thread is awake anyway: waking one costs more than most
        of what it would do."""
        guarded: Guarded[None] = self.isolation.guard(f"turn_{part_name(turn)}", lambda _: turn())
        self._turns.append(guarded)

    @property
    def facts_lost(self) -> int:
        """Facts that no fold has seen, here and in the engine process."""
        return sum(lane.lost for lane in self._lanes) + self._remote_lost()

    @property
    def facts_waiting(self) -> int:
        """Facts that are here and have not been through the folds."""
        return len(self._pending) + sum(map(len, self._lanes))

    @property
    def costs(self) -> tuple[FoldCost, ...]:
        return tuple(self._folds)

    @property
    def detached(self) -> tuple[str, ...]:
        """Folds, listeners and turns that raised and are not called any more."""
        return self.isolation.detached

    def run_once(self, within_ns: int | None = None) -> int:
        """Everything that is in the lanes now goes through all folds, unless another thread
        brings it there first or it takes longer than `within_ns`; returns how many facts this
        one fed.

        Without the lock held, others get it between two pieces. Lanes are drained at once and in
        the order in which they were added, the engine's before the gateway's: what an engine's
        fact follows from is then in this drain or an earlier one, and no sequence has a step
        before it was submitted.
        """
        fed, begin_ns = 0, self._clock.now_ns()
        with self.lock:
            goal = self._drains + 1
        while within_ns is None or self._clock.now_ns() - begin_ns <= within_ns:
            with self.lock:
                if not self._pending:
                    if self._drains >= goal:
                        return fed
                    self._drain()
                fed += self._feed_piece()
                if not self._pending and self._drains >= goal:
                    return fed
            sleep_ns(0)  # lets go of the interpreter
        return fed

    @contextmanager
    def caught_up(self) -> Iterator[None]:
        """For a reader: all that is in the lanes now is brought to the folds, a piece at a time,
        and then the lock is held. A backlog that takes longer than READER_NS is left to the pump's
        thread; `facts_waiting` says how much that is."""
        self.run_once(READER_NS)
        with self.lock:
            yield

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="phasescope-pump", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Drain what is there and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.run_once()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            for turn in self._turns:
                turn(None)
            self.run_once()

    # Under the lock

    def _drain(self) -> None:
        facts = [fact for lane in self._lanes for fact in lane.drain()]
        if not self.recording:
            kept: list[Fact] = [fact for fact in facts if isinstance(fact, RecordingSet)]
            self.facts_skipped += len(facts) - len(kept)
            facts = kept
        facts.sort(key=fact_ns)
        self._pending.extend(facts)
        self._drains += 1

    def _feed_piece(self) -> int:
        """The next facts to every fold; returns how many they were."""
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
        cost.facts += len(facts)
