"""How late the gateway's event loop is: a timer that should fire at a known moment.

A timer that fires late shows that the loop was blocked when the timer was due, and when it was free
again. The block began between the loop's last activity and that moment. While requests are served,
each frame of the engine is an activity, and needs no timer. If the thread ran, or was ready to run,
for all that time, its CPU times give the length. If it slept in a callback, the first unread frame
narrows the begin down, because it was sent when the loop was already blocked; the middle of the
rest is the estimate.

A timer that wakes an idle thread costs about 0.1 ms of CPU on a virtual machine, so timers are
rare, and rarer while no request is served.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from telemetry.facts.base import Unavailable
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.host_records import HostPaused
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from telemetry.host.proc import CpuTimes

BUSY_BEAT_NS = 50_000_000
IDLE_BEAT_NS = 250_000_000
LEAST_LATE_NS = 10_000_000
_SUSPICIOUS_NS = 20_000_000
_NEVER_NS = 1 << 62


class Timers(Protocol):
    """The part of an event loop that the probe needs."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


class Timer(Protocol):
    """One scheduled call."""

    def cancel(self) -> None: ...


class _Slept(NamedTuple):
    """A pause that began between `alive_ns` and `due_ns`."""

    alive_ns: int
    due_ns: int
    end_ns: int
    detail: str


class LoopProbe:
    """Runs on the loop that it probes; the lane must have no other writer.

    `own_times` reads the CPU times of the loop's thread. `sample_stack` is for another thread: it
    notes which function blocks the loop while the loop is late.
    """

    def __init__(
        self,
        clock: Clock,
        lane: Lane,
        own_times: Callable[[], CpuTimes | Unavailable],
        is_busy: Callable[[], bool],
        number: int = 0,
    ) -> None:
        """`number` is that of one of several gateway processes."""
        self._clock = clock
        self._lane = lane
        self._own_times = own_times
        self._is_busy = is_busy
        self._number = number
        self._loop: Timers | None = None
        self._timer: Timer | None = None
        self._thread_ident = 0
        self._alive_ns = 0
        self._due_ns = _NEVER_NS
        self._times: CpuTimes | Unavailable = Unavailable("no beat yet")
        self._suspect: tuple[int, str] | None = None
        self._slept: _Slept | None = None
        self._lag_max_ns = 0

    def start(self, loop: Timers, thread_ident: int) -> None:
        """Begin to probe `loop`, whose thread has this identifier."""
        self._loop, self._thread_ident = loop, thread_ident
        self._times = self._own_times()
        self._arm(self._clock.now_ns())

    def alive(self, facts: Sequence[Fact] = ()) -> None:
        """The loop is active. Called on it with the facts of a frame that was just read."""
        now_ns = self._clock.now_ns()
        if now_ns - self._due_ns >= LEAST_LATE_NS:  # before the timer, which fires soon
            self._late(now_ns)
            self._due_ns = _NEVER_NS
        if self._slept is not None:
            self._write_slept(facts)
        self._alive_ns = now_ns
        if self._timer is not None and BUSY_BEAT_NS < self._due_ns - now_ns < _NEVER_NS // 2:
            self._timer.cancel()  # the long timer of an idle server would hide half a pause
            self._times = self._own_times()
            self._arm(now_ns, BUSY_BEAT_NS)

    def stop(self) -> None:
        """Stop probing; from any thread."""
        self._loop = None

    def take_lag_max_ns(self) -> int:
        """The largest lateness since the last call, in ns."""
        lag_ns, self._lag_max_ns = self._lag_max_ns, 0
        return lag_ns

    def sample_stack(self) -> None:
        """Note the function that blocks the loop, if the loop is late by now. From another
        thread."""
        due_ns = self._due_ns
        if self._loop is None or self._clock.now_ns() - due_ns < _SUSPICIOUS_NS:
            return
        if self._suspect is not None and self._suspect[0] == due_ns:
            return
        frame = sys._current_frames().get(self._thread_ident)
        if frame is not None:
            module = frame.f_globals.get("__name__", "?")
            self._suspect = (due_ns, f"{module}.{frame.f_code.co_qualname}")

    def _arm(self, now_ns: int, delay_ns: int | None = None) -> None:
        if self._loop is None:
            return
        if delay_ns is None:
            delay_ns = BUSY_BEAT_NS if self._is_busy() else IDLE_BEAT_NS
        self._alive_ns, self._due_ns = now_ns, now_ns + delay_ns
        self._timer = self._loop.call_later(delay_ns / 1e9, self._beat)

    def _beat(self) -> None:
        if self._loop is None:
            return
        now_ns = self._clock.now_ns()
        if self._slept is not None:  # no frame has come since
            self._write_slept(())
        if now_ns >= self._due_ns:
            self._late(now_ns)
        self._arm(now_ns)

    def _late(self, now_ns: int) -> None:
        late_ns = now_ns - self._due_ns
        before, after = self._times, self._own_times()
        self._times = after
        if late_ns > self._lag_max_ns:
            self._lag_max_ns = late_ns
        if late_ns < LEAST_LATE_NS:
            return
        if isinstance(before, CpuTimes) and isinstance(after, CpuTimes):
            wait_ns = after.wait_ns - before.wait_ns
            awake_ns = after.run_ns - before.run_ns + wait_ns
            if 2 * awake_ns >= late_ns:
                starved = 3 * wait_ns >= 2 * awake_ns
                cause = PauseCause.OFF_CPU if starved else PauseCause.LOOP_BLOCKED
                length_ns = max(late_ns, min(awake_ns, now_ns - self._alive_ns))
                self._write(now_ns - length_ns, now_ns, cause, self._detail(cause))
                return
        detail = self._detail(PauseCause.LOOP_BLOCKED)
        self._slept = _Slept(self._alive_ns, self._due_ns, now_ns, detail)

    def _write_slept(self, facts: Sequence[Fact]) -> None:
        """Write the pending pause; `facts` are those of the first frame after it."""
        slept, self._slept = self._slept, None
        assert slept is not None
        latest_ns = slept.due_ns
        for fact in facts:
            if isinstance(fact, StepRecorded) and fact.committed_ns > slept.alive_ns:
                latest_ns = min(latest_ns, fact.committed_ns)
        begin_ns = (slept.alive_ns + latest_ns) // 2
        self._write(begin_ns, slept.end_ns, PauseCause.LOOP_BLOCKED, slept.detail)

    def _write(self, begin_ns: int, end_ns: int, cause: PauseCause, detail: str) -> None:
        self._lane.append(
            HostPaused(
                at_ns=end_ns,
                begin_ns=begin_ns,
                end_ns=end_ns,
                process=HostProcess.GATEWAY,
                cause=cause,
                detail=detail,
                gateway=self._number,
            )
        )

    def _detail(self, cause: PauseCause) -> str:
        if cause is PauseCause.OFF_CPU:
            return "main thread"
        if self._suspect is not None and self._suspect[0] == self._due_ns:
            return self._suspect[1]
        return ""
