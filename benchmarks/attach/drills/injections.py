"""Faults of vLLM's processes, from outside: stops, and a CPU quota of their control group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Protocol, cast

from benchmarks.attach.processes import send
from lab.drills.injection import Injection, InjectionTarget

_CPU = Path("/sys/fs/cgroup/cpu")  # control groups of the first version
_UNIFIED = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_EVERY_S = 1.0


class VllmProcesses(Protocol):
    """What an injection needs to know of a vLLM."""

    core_pid: int

    @property
    def pids(self) -> list[int]: ...


def processes_of(target: InjectionTarget) -> VllmProcesses:
    """The server of a drill here is a vLLM."""
    return cast(VllmProcesses, target.server)


class CoreStops(Injection):
    """Each second the engine core's process stands still for `ms`."""

    def __init__(self, ms: float) -> None:
        self._ms = ms
        self._task: asyncio.Task[None] | None = None
        self._pid = 0

    async def begin(self, target: InjectionTarget) -> None:
        self._pid = processes_of(target).core_pid
        self._task = asyncio.create_task(self._stop_again_and_again())

    async def end(self, target: InjectionTarget) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            send([self._pid], signal.SIGCONT)

    async def _stop_again_and_again(self) -> None:
        while True:
            send([self._pid], signal.SIGSTOP)
            await asyncio.sleep(self._ms / 1000)
            send([self._pid], signal.SIGCONT)
            await asyncio.sleep(max(0.05, _EVERY_S - self._ms / 1000))


class EngineCoreStop(Injection):
    """The engine core's process is stopped once, and continued after `seconds`, or at the end of
    the fault."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pid = 0
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, target: InjectionTarget) -> None:
        self._pid = processes_of(target).core_pid
        send([self._pid], signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, send, [self._pid], signal.SIGCONT)

    async def end(self, target: InjectionTarget) -> None:
        if self._timer is not None:
            self._timer.cancel()
            send([self._pid], signal.SIGCONT)


class CpuQuota(Injection):
    """The processes of the server are in a control group of their own, which gets `share` of a
    core for the time of the fault. Raises OSError where control groups cannot be written."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._group: Path | None = None

    async def arm(self, target: InjectionTarget) -> None:
        parent = _CPU if _CPU.is_dir() else _UNIFIED
        self._group = parent / f"phasescope-drill-{os.getpid()}"
        self._group.mkdir()
        for pid in processes_of(target).pids:
            with contextlib.suppress(ProcessLookupError):
                (self._group / "cgroup.procs").write_text(str(pid))

    async def begin(self, target: InjectionTarget) -> None:
        self._limit(round(self._share * _PERIOD_US))

    async def end(self, target: InjectionTarget) -> None:
        if self._group is None:
            return
        self._limit(None)
        for pid in (self._group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self._group.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            self._group.rmdir()
        self._group = None

    def _limit(self, quota_us: int | None) -> None:
        assert self._group is not None, "the quota was not armed"
        first = self._group / "cpu.cfs_quota_us"
        if first.exists():
            first.write_text(str(-1 if quota_us is None else quota_us))
            return
        value = "max" if quota_us is None else str(quota_us)
        (self._group / "cpu.max").write_text(f"{value} {_PERIOD_US}")
