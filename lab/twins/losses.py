"""CPU contention: what keeps the engine from running while it has work, and where that shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Protocol


class Loss(StrEnum):
    """Kinds of lost time. Waits show in the statistics of the process, throttling also in its
    control group's, collections in the garbage collector's callback; the others show nowhere."""

    WAITED = "waited"  # runnable, another process ran
    THROTTLED = "throttled"  # the control group's quota was used up
    STOPPED = "stopped"  # not runnable: a signal
    COLLECTED = "collected"  # it ran its garbage collector
    BLOCKED = "blocked"  # it slept in a system call


@dataclass(frozen=True, slots=True)
class LostInterval:
    """[begin, end) in which the engine's main thread would have run and did not."""

    begin_ns: int
    end_ns: int
    kind: Loss


class CpuContention(Protocol):
    """Something that takes CPU time from the engine. `losses` are those so far, in the order of
    time."""

    losses: list[LostInterval]

    def stretch(self, begin_ns: int, wall_ns: int) -> int:
        """Elapsed ns of work that would take `wall_ns` from `begin_ns` on without contention."""
        ...


class CpuStarvation:
    """Other processes on the engine's core: it runs for about `run_ns`, then waits for about
    `wait_ns`, both drawn anew each time."""

    def __init__(self, begin_ns: int, end_ns: int, run_ns: int, wait_ns: int, draw: Random) -> None:
        self.losses: list[LostInterval] = []
        self._begin_ns, self._end_ns = begin_ns, end_ns
        self._run_ns, self._wait_ns = run_ns, wait_ns
        self._draw = draw
        self._left_ns = run_ns

    def stretch(self, begin_ns: int, wall_ns: int) -> int:
        if not self._begin_ns <= begin_ns < self._end_ns:
            return wall_ns
        at_ns, remaining_ns = begin_ns, wall_ns
        while remaining_ns > self._left_ns:
            at_ns += self._left_ns
            remaining_ns -= self._left_ns
            wait_ns = int(self._wait_ns * self._draw.uniform(0.5, 1.5))
            self.losses.append(LostInterval(at_ns, at_ns + wait_ns, Loss.WAITED))
            at_ns += wait_ns
            self._left_ns = int(self._run_ns * self._draw.uniform(0.5, 1.5))
        self._left_ns -= remaining_ns
        return at_ns + remaining_ns - begin_ns


class CpuQuota:
    """A control group that may run for `run_ns` of each `period_ns`, and is then throttled."""

    def __init__(self, begin_ns: int, end_ns: int, period_ns: int, run_ns: int) -> None:
        self.losses: list[LostInterval] = []
        self._begin_ns, self._end_ns = begin_ns, end_ns
        self._period_ns, self._run_ns = period_ns, run_ns
        self._period = -1
        self._used_ns = 0

    def stretch(self, begin_ns: int, wall_ns: int) -> int:
        at_ns, remaining_ns = begin_ns, wall_ns
        while remaining_ns > 0 and self._begin_ns <= at_ns < self._end_ns:
            period = at_ns // self._period_ns
            if period != self._period:
                self._period, self._used_ns = period, 0
            next_ns = (period + 1) * self._period_ns
            runs_ns = min(remaining_ns, self._run_ns - self._used_ns, next_ns - at_ns)
            self._used_ns += runs_ns
            at_ns += runs_ns
            remaining_ns -= runs_ns
            if remaining_ns and self._used_ns >= self._run_ns and at_ns < next_ns:
                self.losses.append(LostInterval(at_ns, next_ns, Loss.THROTTLED))
                at_ns = next_ns
        return at_ns + remaining_ns - begin_ns


class ProcessStops:
    """The process is stopped at given times for given lengths: at once, or, with `between`, at the
    end of the iteration."""

    def __init__(self, stops: Iterable[tuple[int, int]], kind: Loss, between: bool = False) -> None:
        self.losses: list[LostInterval] = []
        self._kind, self._between = kind, between
        self._due = deque(sorted(stops))

    @property
    def due_ns(self) -> list[int]:
        """When the stops begin that have not happened yet."""
        return [at_ns for at_ns, _ in self._due]

    def stretch(self, begin_ns: int, wall_ns: int) -> int:
        if self._between:
            return wall_ns
        end_ns = begin_ns + wall_ns
        while self._due and self._due[0][0] <= end_ns:
            at_ns, length_ns = self._due.popleft()
            end_ns += self._stop(max(at_ns, begin_ns), at_ns + length_ns - max(at_ns, begin_ns))
        return end_ns - begin_ns

    def stopped_ns(self, now_ns: int) -> int:
        """How long the process is stopped, if it is between two iterations or idle at `now_ns`."""
        end_ns = now_ns
        while self._due and self._due[0][0] <= end_ns:
            at_ns, length_ns = self._due.popleft()
            left_ns = length_ns if self._between else at_ns + length_ns - end_ns
            end_ns += self._stop(end_ns, left_ns)
        return end_ns - now_ns

    def _stop(self, begin_ns: int, length_ns: int) -> int:
        if length_ns > 0:
            self.losses.append(LostInterval(begin_ns, begin_ns + length_ns, self._kind))
        return max(0, length_ns)
