"""Facts about the machine that the two processes run on: pauses, samples, the GPU.

They belong to the union `Fact` of `telemetry.facts.records`. A collection of garbage is written as
`HostPaused` by the process that it paused; everything else is written by the gateway.
"""

from __future__ import annotations

import msgspec

from telemetry.facts.base import FactStruct
from telemetry.facts.reasons import HostProcess, PauseCause


class HostPaused(FactStruct, frozen=True):
    """A process made no progress in [begin_ns, end_ns), or for `lost_ns` of it if that is all that
    is known: the kernel counts waits for a CPU, but does not stamp them.

    `detail` names the generation collected or the function that blocked the loop. `at_ns` is
    `end_ns`. Pauses of the engine's loop are not written: they are derived from its steps.
    Of several gateway processes, `gateway` is the number of the one that paused. `of_worker`: of
    the process that computes the steps of an attached engine, and not of the engine's core.
    """

    at_ns: int
    begin_ns: int
    end_ns: int
    process: HostProcess
    cause: PauseCause
    detail: str = ""
    lost_ns: int | None = None
    gateway: int = 0
    of_worker: bool = False


class HostSampled(FactStruct, frozen=True):
    """The machine over the `window_ns` before `at_ns`; None is not measured.

    `run` and `wait` are the times in which the main thread of a process ran, and waited for a CPU;
    of an attached engine whose workers are processes of their own, of its first worker;
    `steal` is the time that other guests of the hypervisor took, over all CPUs; pressure is the
    time in which at least one task was delayed (PSI). `unavailable` has the reason for a quantity
    without a value, when the reason is new.
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

    `telemetry.host.gpu_peaks` computes the peaks; None if it cannot.
    """

    at_ns: int
    gpu: str
    name: str
    driver: str | None = None
    peak_bytes_per_s: float | None = None
    peak_flop_per_s: float | None = None


class GpuSampled(FactStruct, frozen=True):
    """One reading of one GPU; None is not measured. Shares are in percent.

    `dram_bandwidth_pct` is a share of the peak, from hardware counters; `memory_busy_pct` is the
    share of time in which memory was in use, which is not a bandwidth. `clock_events` is NVML's bit
    mask of the reasons for lowered clocks.
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
