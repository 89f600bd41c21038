"""Moves facts from lanes to folds, off the serving path.

All folds run on one thread and under one lock, so a reader that holds the lock sees them
in agreement. A fold that raises is detached and reported; the others go on. What each
fold costs is measured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from telemetry.clock import Clock
from telemetry.engine_records import RecordingSet
from telemetry.recorder import Lane
from telemetry.records import Fact, fact_ns

log = logging.getLogger("phasescope.telemetry")

_INTERVAL_S = 0.05


class Fold(Protocol):
    """Anything that consumes facts."""

    def on_facts(self, facts: Sequence[Fact]) -> None: ...


@dataclass(slots=True)
class FoldCost:
    """What a fold has cost so far, and why it was detached, if it was."""

    name: str
    fold: Fold
    facts: int = 0
    busy_ns: int = 0
    error: str | None = None


class Pump:
    """Drains lanes into folds, by hand (`run_once`) or on a thread (`start`, `stop`).

    While `recording` is false folds are fed nothing; what came is counted in `facts_skipped`.
    """

    def __init__(self, clock: Clock, remote_lost: Callable[[], int] = lambda: 0) -> None:
        self.lock = threading.RLock()
        self.recording = True
        self.facts_skipped = 0
        self._clock = clock
        self._remote_lost = remote_lost
        self._lanes: list[Lane] = []
        self._folds: list[FoldCost] = []
        self._turns: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add_lane(self, lane: Lane) -> None:
        self._lanes.append(lane)

    def add_fold(self, name: str, fold: Fold) -> None:
        self._folds.append(FoldCost(name, fold))

    def add_turn(self, turn: Callable[[], None]) -> None:
        """Call `turn` each time the thread is awake anyway: waking one costs more than most
        of what it would do. One that raises is not called again."""
        self._turns.append(turn)

    @property
    def facts_lost(self) -> int:
        """Facts that no fold has seen, here and in the engine process."""
        return sum(lane.lost for lane in self._lanes) + self._remote_lost()

    @property
    def costs(self) -> tuple[FoldCost, ...]:
        return tuple(self._folds)

    @property
    def detached(self) -> tuple[str, ...]:
        return tuple(cost.name for cost in self._folds if cost.error is not None)

    def run_once(self) -> int:
        """Everything that is in the lanes now goes through all folds; returns how much.

        Lanes are drained in the order in which they were added, the engine's before the
        gateway's: what an engine's fact follows from is then in this batch or an earlier one,
        and no sequence has a step before it was submitted.
        """
        with self.lock:
            facts = [fact for lane in self._lanes for fact in lane.drain()]
            if not self.recording:
                kept: list[Fact] = [fact for fact in facts if isinstance(fact, RecordingSet)]
                self.facts_skipped += len(facts) - len(kept)
                facts = kept
            facts.sort(key=fact_ns)
            if facts:
                for cost in self._folds:
                    if cost.error is None:
                        self._feed(cost, facts)
            return len(facts)

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
            for turn in list(self._turns):
                self._take_turn(turn)
            self.run_once()

    def _take_turn(self, turn: Callable[[], None]) -> None:
        try:
            turn()
        except Exception:
            self._turns.remove(turn)
            log.exception("telemetry's %s is not called any more: it raised", turn)

    def _feed(self, cost: FoldCost, facts: list[Fact]) -> None:
        begin_ns = self._clock.now_ns()
        try:
            cost.fold.on_facts(facts)
        except Exception as error:
            cost.error = f"{type(error).__name__}: {error}"
            log.exception("telemetry fold %s is detached: it raised", cost.name)
        cost.busy_ns += self._clock.now_ns() - begin_ns
        cost.facts += len(facts)
