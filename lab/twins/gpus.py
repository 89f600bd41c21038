"""GPUs of a twin: what NVML would say of them twice a second, and the device's own times of a step.

There is no GPU behind it: names and values are those of an H100 that works, and what a fault
changes is given by `GpuFault`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from lab.twins.physics import SECOND
from telemetry.facts.host_records import GpuFound, GpuSampled, GpuXid
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import DeviceTimes

_EVERY_NS = SECOND // 2
_CLOCK_MHZ, _MEMORY_MHZ = 1980, 2619
_USED_BYTES = 68 << 30
_POWER_W, _TEMPERATURE_C, _DRAM_PCT = 480.0, 61.0, 38.0
_PEAK_BYTES_PER_S = 3.35e12
_USUAL_SKEW = 0.01  # of a forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFault:
    """In [begin, end) one GPU, which is also the rank, differs. `events` is NVML's mask. The
    forward passes of a slow rank take `slower` times as long, for which the others wait; before
    each step the device waits for `launch_ns`."""

    begin_ns: int
    end_ns: int
    gpu: int = 0
    clock_mhz: int | None = None
    events: int = 0
    temperature_c: float | None = None
    power_w: float | None = None
    memory_more_bytes: int = 0
    dram_more_pct: float = 0.0
    slower: float = 1.0
    launch_ns: int = 0

    def holds(self, at_ns: int) -> bool:
        return self.begin_ns <= at_ns < self.end_ns


@dataclass(slots=True)
class Gpus:
    """The GPUs of one run, as many as ranks. `xids` are (time, GPU, number)."""

    count: int
    faults: list[GpuFault]
    xids: list[tuple[int, int, int]]
    unmeasured: frozenset[str] = (
        frozenset()
    )  # fields of `GpuSampled` that this driver does not have

    def at(self, at_ns: int) -> list[GpuFault]:
        return [fault for fault in self.faults if fault.holds(at_ns)]

    def times(self, busy_ns: int, bubble_ns: int, slow_ns: int) -> tuple[DeviceTimes, int | None]:
        """Times of one step, and the skew of its ranks, of whom one took `slow_ns` longer."""
        skew_ns = int(_USUAL_SKEW * busy_ns) + slow_ns if self.count > 1 else None
        return DeviceTimes(busy_ns, bubble_ns), skew_ns

    def slowest(self, at_ns: int, draw: Random) -> int | None:
        """The rank that the others wait for."""
        slow = [fault.gpu for fault in self.at(at_ns) if fault.slower > 1]
        if self.count < 2:
            return None
        return slow[0] if slow else draw.randrange(self.count)

    def facts(self, begin_ns: int, end_ns: int, draw: Random) -> Iterable[Fact]:
        """Samples of all GPUs, and errors that the driver reported."""
        for gpu in range(self.count):
            yield GpuFound(begin_ns, str(gpu), "NVIDIA H100", "580.0", _PEAK_BYTES_PER_S, None)
        for at_ns in range(begin_ns + _EVERY_NS, end_ns, _EVERY_NS):
            for gpu in range(self.count):
                yield self._sample(at_ns + draw.randrange(1_000_000), gpu, draw)
        for at_ns, gpu, xid in self.xids:
            yield GpuXid(at_ns, str(gpu), xid)

    def _sample(self, at_ns: int, gpu: int, draw: Random) -> GpuSampled:
        fault = next(
            (one for one in self.at(at_ns) if one.gpu == gpu), GpuFault(begin_ns=0, end_ns=0)
        )
        values: dict[str, int | float] = {
            "memory_used_bytes": _USED_BYTES + fault.memory_more_bytes,
            "dram_bandwidth_pct": _DRAM_PCT * draw.uniform(0.9, 1.1) + fault.dram_more_pct,
            "gpu_busy_pct": draw.uniform(80, 100),
            "sm_clock_mhz": int((fault.clock_mhz or _CLOCK_MHZ) * draw.uniform(0.985, 1.0)),
            "memory_clock_mhz": _MEMORY_MHZ,
            "clock_events": fault.events,
            "power_w": (fault.power_w or _POWER_W) * draw.uniform(0.95, 1.05),
            "temperature_c": (fault.temperature_c or _TEMPERATURE_C) + draw.uniform(-1, 1),
        }
        known = {name: value for name, value in values.items() if name not in self.unmeasured}
        return GpuSampled(at_ns=at_ns, gpu=str(gpu), **known)  # type: ignore[arg-type]
