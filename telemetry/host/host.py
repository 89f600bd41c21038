"""Samples the machine from the gateway, which observes the engine process from outside.

On each tick of the pump's thread it checks whether the event loop is late, and whether the engine's
main thread or the control group had to wait for a CPU. Once a second it writes a HostSampled.
The control group is the engine's. Everything is read from files of /proc and /sys that stay open.
Each quantity is optional: without its file it is unavailable, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from telemetry.facts.base import Unavailable
from telemetry.facts.clock import Clock
from telemetry.facts.host_records import HostPaused, HostSampled
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.recorder import Lane
from telemetry.host import proc
from telemetry.host.loop_probe import LoopProbe
from telemetry.host.proc import CpuTimes, Source

SAMPLE_NS = 1_000_000_000
LEAST_WAIT_NS = 20_000_000
_NO_ENGINE = Unavailable("no engine is ready")


class _Increase:
    """The increase of a counter since the last call."""

    def __init__(self, read: Callable[[], int | Unavailable]) -> None:
        self._read = read
        self._last: int | None = None

    def take(self) -> int | Unavailable:
        value = self._read()
        if isinstance(value, Unavailable):
            return value
        last, self._last = self._last, value
        if last is None:
            return Unavailable("the first of two readings was just taken")
        return value - last


class _Process:
    """The main thread of a process, and its memory."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.times = proc.thread_times(pid, pid)
        self.resident = proc.resident_bytes(pid)
        self.run = _Increase(lambda: _part(self.times, 0))
        self.wait = _Increase(lambda: _part(self.times, 1))
        self.tick_wait = _Increase(lambda: _part(self.times, 1))

    def close(self) -> None:
        self.times.close()
        self.resident.close()


def _part(times: Source[CpuTimes], index: int) -> int | Unavailable:
    found = times.read()
    return found if isinstance(found, Unavailable) else found[index]


class HostSampler:
    """Call `tick` from one thread; the lane must have no other writer. `engine_pid` is the process
    that computes steps; `is_worker` says whether that is not the engine's core."""

    def __init__(
        self,
        clock: Clock,
        lane: Lane,
        probe: LoopProbe,
        engine_pid: Callable[[], int | None],
        is_worker: Callable[[], bool] = lambda: False,
    ) -> None:
        self.unavailable: dict[str, str] = {}
        self._clock = clock
        self._lane = lane
        self._probe = probe
        self._engine_pid, self._is_worker = engine_pid, is_worker
        self._gateway = _Process(os.getpid())
        self._engine: _Process | None = None
        self._read_group(proc.groups_of())
        self._steal_source = proc.steal_ns()
        self._steal = _Increase(self._steal_source.read)
        self._pressure_sources = {name: proc.pressure_ns(name) for name in ("cpu", "memory", "io")}
        self._pressure = {
            name: _Increase(source.read) for name, source in self._pressure_sources.items()
        }
        self._tick_ns = self._sampled_ns = clock.now_ns()

    def close(self) -> None:
        """Close the files. Call it after the last tick."""
        self._gateway.close()
        if self._engine is not None:
            self._engine.close()
        for source in (
            self._throttled_source,
            self._steal_source,
            *self._pressure_sources.values(),
        ):
            source.close()

    def tick(self) -> None:
        """Check once, and write the facts of what was found."""
        self._probe.sample_stack()
        self._follow_engine()
        now_ns = self._clock.now_ns()
        self._note_waits(now_ns)
        self._tick_ns = now_ns
        if now_ns - self._sampled_ns >= SAMPLE_NS:
            self._sample(now_ns)
            self._sampled_ns = now_ns

    def _follow_engine(self) -> None:
        pid = self._engine_pid()
        if self._engine is not None and self._engine.pid != pid:
            self._engine.close()
            self._engine = None
        if self._engine is None and pid is not None:
            self._engine = _Process(pid)
            self._follow_group()

    def _follow_group(self) -> None:
        """The quota that counts is the engine's, wherever that runs; it may be moved."""
        groups = "" if self._engine is None else proc.groups_of(self._engine.pid)
        if not groups or groups == self._groups:
            return
        self._throttled_source.close()
        self._read_group(groups)

    def _read_group(self, groups: str) -> None:
        self._groups = groups
        self._throttled_source = proc.throttled_ns(groups)
        self._tick_throttled = _Increase(self._throttled_source.read)
        self._throttled = _Increase(self._throttled_source.read)

    def _note_waits(self, now_ns: int) -> None:
        if self._engine is not None:
            waited = self._engine.tick_wait.take()
            self._note(now_ns, HostProcess.ENGINE, PauseCause.OFF_CPU, waited)
        throttled = self._tick_throttled.take()
        for process in HostProcess:
            self._note(now_ns, process, PauseCause.THROTTLED, throttled)

    def _note(
        self, now_ns: int, process: HostProcess, cause: PauseCause, lost: int | Unavailable
    ) -> None:
        if isinstance(lost, Unavailable) or lost < LEAST_WAIT_NS:
            return
        self._lane.append(
            HostPaused(
                at_ns=now_ns,
                begin_ns=self._tick_ns,
                end_ns=now_ns,
                process=process,
                cause=cause,
                detail="main thread" if cause is PauseCause.OFF_CPU else "control group",
                lost_ns=min(lost, now_ns - self._tick_ns),
                of_worker=process is HostProcess.ENGINE and self._is_worker(),
            )
        )

    def _sample(self, now_ns: int) -> None:
        self._follow_group()
        engine = self._engine
        found: dict[str, int | Unavailable] = {
            "engine_run_ns": engine.run.take() if engine else _NO_ENGINE,
            "engine_wait_ns": engine.wait.take() if engine else _NO_ENGINE,
            "engine_resident_bytes": engine.resident.read() if engine else _NO_ENGINE,
            "gateway_run_ns": self._gateway.run.take(),
            "gateway_wait_ns": self._gateway.wait.take(),
            "gateway_resident_bytes": self._gateway.resident.read(),
            "loop_lag_max_ns": self._probe.take_lag_max_ns(),
            "steal_ns": self._steal.take(),
            "throttled_ns": self._throttled.take(),
            **{f"pressure_{name}_ns": increase.take() for name, increase in self._pressure.items()},
        }
        missing = {name: v.why for name, v in found.items() if isinstance(v, Unavailable)}
        values = {name: v for name, v in found.items() if not isinstance(v, Unavailable)}
        changed = {name: why for name, why in missing.items() if self.unavailable.get(name) != why}
        self.unavailable = missing
        window_ns = now_ns - self._sampled_ns
        self._lane.append(
            HostSampled(at_ns=now_ns, window_ns=window_ns, unavailable=changed, **values)
        )
