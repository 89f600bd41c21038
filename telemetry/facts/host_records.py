"""Facts about the machine that the two processes run on: pauses, samples, the GPU.

They are facts like those of `telemetry.facts.records`, whose `Fact` they belong to. `HostPaused` is
written by the process that stood still where it can see that, the others by the gateway.
"""

from __future__ import annotations

import msgspec

from telemetry.facts.base import FactStruct
from telemetry.facts.reasons import HostProcess, PauseCause


class HostPaused(FactStruct, frozen=True):
    """A process stood still in [begin_ns, end_ns), or for `lost_ns` within it where only that
    much is known: waits for a CPU are counted, not stamped.

    `detail` names the generation collected or the function that held the loop. `at_ns` is
    `end_ns`. A pause of the engine's own loop shows between its steps and is not written.
    """

    at_ns: int
    begin_ns: int
    end_ns: int
    process: HostProcess
    cause: PauseCause
    detail: str = ""
    lost_ns: int | None = None


class HostSampled(FactStruct, frozen=True):
    """The machine over the `window_ns` before `at_ns`; None is not measured.

    `run` and `wait` are what the main thread of a process ran and waited for a CPU; `steal` is
    what other guests of the hypervisor took, of all CPUs together; pressure is the time in
    which at least one task was held up. `unavailable` says why a quantity has no value,
    where that is new.
    """

    at_ns: int
    window_ns: int
    engine_run_ns: int | None = None
    engine_wait_ns: int | None = None
    engine_resident_bytes: int | None = None
    gateway_run_ns: int | None = None
    gateway_wait_ns: int | None = None
    gateway_resident_bytes: int | None = None
    loop_lag_max_ns: int | None = None
    steal_ns: int | None = None
    throttled_ns: int | None = None
    pressure_cpu_ns: int | None = None
    pressure_memory_ns: int | None = None
    pressure_io_ns: int | None = None
    unavailable: dict[str, str] = msgspec.field(default_factory=dict)


class GpuFound(FactStruct, frozen=True):
    """A GPU, or a MIG instance of one, that is sampled from now on.

    The peaks are worked out as `telemetry.host.gpu_peaks` says, None where it cannot.
    """

    at_ns: int
    gpu: str
    name: str
    driver: str | None = None
    peak_bytes_per_s: float | None = None
    peak_flop_per_s: float | None = None


class GpuSampled(FactStruct, frozen=True):
    """One reading of one GPU; None is not measured. Shares are in percent.

    `dram_bandwidth_pct` is of the peak and comes from hardware counters; `memory_busy_pct` is
    the share of time in which memory was in use, which is no bandwidth. `clock_events` is
    NVML's bit mask of what holds the clocks down.
    """

    at_ns: int
    gpu: str
    memory_used_bytes: int | None = None
    dram_bandwidth_pct: float | None = None
    sm_busy_pct: float | None = None
    tensor_busy_pct: float | None = None
    gpu_busy_pct: float | None = None
    memory_busy_pct: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_events: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    ecc_uncorrected: int | None = None


class GpuXid(FactStruct, frozen=True):
    """The driver reported an error of the GPU: `xid` is its number in NVIDIA's list, None for
    an uncorrectable memory error that came without one."""

    at_ns: int
    gpu: str
    xid: int | None
