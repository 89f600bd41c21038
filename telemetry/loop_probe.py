"""How late the gateway's event loop is: a timer that ought to fire every few milliseconds.

A timer that fires late tells when the loop was free again, and that it was not at the moment
the timer was due; it began to be held up somewhere between the last beat and that moment.
If the thread ran (or was ready to run) for all that time, what it ran since the last beat
tells how long; if it slept in a callback, the middle is the best guess, at most half a beat
from the truth. So beats are close together while somebody is served, and seldom else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from telemetry.clock import Clock
from telemetry.host_records import HostPaused
from telemetry.proc import CpuTimes
from telemetry.reasons import HostProcess, PauseCause
from telemetry.recorder import Lane
from telemetry.unavailable import Unavailable

BUSY_BEAT_NS = 20_000_000
IDLE_BEAT_NS = 100_000_000
LEAST_LATE_NS = 10_000_000
_SUSPICIOUS_NS = 40_000_000


class Timers(Protocol):
    """The part of an event loop that the probe needs."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> object: ...


class LoopProbe:
    """Runs on the loop that it watches; the lane must have no other writer.

    `own_times` reads the CPU times of the loop's thread. `look` is for another thread: it
    notes which function holds the loop while it is late.
    """

    def __init__(
        self,
        clock: Clock,
        lane: Lane,
        own_times: Callable[[], CpuTimes | Unavailable],
        is_busy: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._lane = lane
        self._own_times = own_times
        self._is_busy = is_busy
        self._loop: Timers | None = None
        self._thread_ident = 0
        self._beat_ns = 0
        self._due_ns = 0
        self._times: CpuTimes | Unavailable = Unavailable("no beat yet")
        self._suspect: tuple[int, str] | None = None
        self._lag_max_ns = 0

    def start(self, loop: Timers, thread_ident: int) -> None:
        """Beat on `loop`, whose thread has this identifier."""
        self._loop, self._thread_ident = loop, thread_ident
        self._times = self._own_times()
        self._arm(self._clock.now_ns())

    def stop(self) -> None:
        """From any thread: the timer that is set does nothing more."""
        self._loop = None

    def take_lag_max_ns(self) -> int:
        """The latest beat since the last call."""
        lag_ns, self._lag_max_ns = self._lag_max_ns, 0
        return lag_ns

    def look(self) -> None:
        """From another thread: who holds the loop, if it is late by now."""
        due_ns = self._due_ns
        if self._loop is None or self._clock.now_ns() - due_ns < _SUSPICIOUS_NS:
            return
        if self._suspect is not None and self._suspect[0] == due_ns:
            return
        frame = sys._current_frames().get(self._thread_ident)
        if frame is not None:
            module = frame.f_globals.get("__name__", "?")
            self._suspect = (due_ns, f"{module}.{frame.f_code.co_qualname}")

    def _arm(self, now_ns: int) -> None:
        if self._loop is None:
            return
        delay_ns = BUSY_BEAT_NS if self._is_busy() else IDLE_BEAT_NS
        self._beat_ns, self._due_ns = now_ns, now_ns + delay_ns
        self._loop.call_later(delay_ns / 1e9, self._beat)

    def _beat(self) -> None:
        if self._loop is None:
            return
        now_ns = self._clock.now_ns()
        late_ns = now_ns - self._due_ns
        before, self._times = self._times, self._own_times()
        if late_ns > self._lag_max_ns:
            self._lag_max_ns = late_ns
        if late_ns >= LEAST_LATE_NS:
            self._blocked(now_ns, late_ns, before, self._times)
        self._arm(now_ns)

    def _blocked(
        self,
        now_ns: int,
        late_ns: int,
        before: CpuTimes | Unavailable,
        after: CpuTimes | Unavailable,
    ) -> None:
        longest_ns = now_ns - self._beat_ns
        length_ns = (late_ns + longest_ns) // 2
        cause = PauseCause.LOOP_BLOCKED
        if isinstance(before, CpuTimes) and isinstance(after, CpuTimes):
            wait_ns = after.wait_ns - before.wait_ns
            awake_ns = after.run_ns - before.run_ns + wait_ns
            if 2 * awake_ns >= late_ns:
                length_ns = max(late_ns, min(awake_ns, longest_ns))
            if 2 * wait_ns >= late_ns:
                cause = PauseCause.OFF_CPU
        self._lane.append(
            HostPaused(
                at_ns=now_ns,
                begin_ns=now_ns - length_ns,
                end_ns=now_ns,
                process=HostProcess.GATEWAY,
                cause=cause,
                detail=self._detail(cause),
            )
        )

    def _detail(self, cause: PauseCause) -> str:
        if cause is PauseCause.OFF_CPU:
            return "main thread"
        if self._suspect is not None and self._suspect[0] == self._due_ns:
            return self._suspect[1]
        return ""
