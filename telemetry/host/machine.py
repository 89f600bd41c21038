"""All observation of the machine as one part: probes, samplers, lanes and folds.

It can be switched off as a whole: then nothing is installed, and no fold is fed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import msgspec

from telemetry.facts.clock import Clock
from telemetry.facts.reasons import HostProcess
from telemetry.facts.recorder import Lane
from telemetry.host import proc
from telemetry.host.gc_watch import GcWatch
from telemetry.host.gpu import GpuSampler
from telemetry.host.host import HostSampler
from telemetry.host.host_impact import HostImpact
from telemetry.host.loop_probe import LoopProbe, Timers
from telemetry.host.pauses import Pause, PauseLog
from telemetry.host.roofline import Peaks, Roofline, RooflineView
from telemetry.pump.pump import Pump

_LANE_FACTS = 4096


class MachineWatch:
    """The part in the gateway; the engine process has a `GcWatch` of its own.

    `engine_pid` is the pid of the engine that is ready, `is_worker` whether it is that of a worker
    and not of the engine's core, `is_busy` says whether requests are being served; all are called
    from other threads.
    """

    def __init__(
        self,
        clock: Clock,
        engine_pid: Callable[[], int | None],
        is_busy: Callable[[], bool],
        peaks: Peaks | None = None,
        is_worker: Callable[[], bool] = lambda: False,
        enabled: bool = True,
    ) -> None:
        self.enabled = enabled
        self._clock = clock
        self._lanes = [Lane(_LANE_FACTS) for _ in range(5)]  # one for each writer
        of_gc, of_probe, of_host, of_gpu, of_xids = self._lanes
        self._gc = GcWatch(HostProcess.GATEWAY, of_gc, clock)
        own_times = proc.thread_times(os.getpid(), threading.main_thread().native_id or os.getpid())
        self.probe = LoopProbe(clock, of_probe, own_times.read, is_busy)
        self._host = HostSampler(clock, of_host, self.probe, engine_pid, is_worker)
        self.gpu = GpuSampler(clock, of_gpu, of_xids)
        self.impact = HostImpact()
        self._on_pause: Callable[[Pause], None] = self.impact.on_pause
        self.pauses = PauseLog(lambda pause: self._on_pause(pause))
        self.roofline = Roofline(peaks)

    def attach(self, pump: Pump) -> None:
        """Add lanes and folds to the pump. Call it before folds that read `pauses` are added."""
        if not self.enabled:
            return
        for lane in self._lanes:
            pump.add_lane(lane)
        self._on_pause = pump.isolation.guard("pauses_host_impact", self.impact.on_pause)
        pump.add_tick(self._host.tick)
        pump.add_fold("host_impact", self.impact)
        pump.add_fold("pauses", self.pauses)
        pump.add_fold("roofline", self.roofline)

    def start(self, loop: Timers) -> None:
        """Start all probes. Call it on the thread that runs `loop`."""
        if not self.enabled:
            return
        self._gc.install()
        self.probe.start(loop, threading.get_ident())
        self.gpu.start()

    def stop(self) -> None:
        """Stop all probes. Call it after the pump has stopped."""
        if not self.enabled:
            return
        self._gc.remove()
        self.probe.stop()
        self._host.close()
        self.gpu.stop()

    def host_json(self) -> bytes:
        """The answer of `/debug/host`. Hold the pump's lock."""
        found = self.impact.as_dict(self._host.unavailable)
        gpus = [sample.as_dict() for sample in self.gpu.all_latest()]
        return msgspec.json.encode({**found, "gpus": gpus, "xids": self.gpu.xid_status})

    def roofline_json(self) -> bytes:
        """The answer of `/debug/roofline`. Hold the pump's lock."""
        return msgspec.json.encode(self.roofline_view())

    def roofline_view(self) -> RooflineView:
        """The roofline of the last seconds. Hold the pump's lock."""
        return self.roofline.view(self._clock.now_ns())
