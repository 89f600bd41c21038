"""Reads the GPU through NVML: each quantity is a value, or unavailable and why.

An observer changes nothing: no NVML mode is ever set. Memory-controller utilisation is the
share of time in which memory was busy, not bandwidth; bandwidth comes from GPM, which needs
two samples at least 100 ms apart and a Hopper GPU or newer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Unavailable:
    """There is no value, for this reason."""

    why: str


Value = float | Unavailable


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU by quantity; `status` is `ok` or why there is none."""

    status: str
    name: str | None = None
    values: dict[str, Value] = field(default_factory=dict)

    def as_dict(self) -> dict[str, float | str]:
        """For the snapshot: numbers where there are numbers, reasons where there are not."""
        found: dict[str, float | str] = {"status": self.status}
        if self.name is not None:
            found["name"] = self.name
        for quantity, value in self.values.items():
            found[quantity] = (
                f"unavailable: {value.why}" if isinstance(value, Unavailable) else value
            )
        return found


class GpuSampler:
    """Samples the first GPU on its own thread; without a GPU it says so and does nothing."""

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._handle: Any = None
        self._gpm: _Gpm | None = None
        self._latest = GpuSample("unavailable: not started")

    def latest(self) -> GpuSample:
        return self._latest

    def start(self) -> None:
        """Open NVML and begin to sample; stays silent and idle where there is no GPU."""
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError as error:
            self._latest = GpuSample(f"unavailable: {error}")
            return
        self._gpm = _Gpm(self._handle)
        self.sample()
        self._thread = threading.Thread(target=self._run, name="phasescope-gpu", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._handle is not None:
            if self._gpm is not None:
                self._gpm.close()
            self._handle = None
            pynvml.nvmlShutdown()

    def sample(self) -> GpuSample:
        """Read everything once."""
        handle = self._handle
        values: dict[str, Value] = {}
        _fill_memory(values, handle)
        _fill_utilization(values, handle)
        for name, read in _SCALARS.items():
            values[name] = _try(lambda read=read: read(handle))  # type: ignore[misc]
        if self._gpm is not None:
            values["dram_bandwidth_pct"] = self._gpm.read()
        label = pynvml.nvmlDeviceGetName(handle)
        name = label.decode() if isinstance(label, bytes) else str(label)
        self._latest = GpuSample("ok", name, values)
        return self._latest

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.sample()
            except pynvml.NVMLError as error:
                self._latest = GpuSample(f"unavailable: {error}")


def _try(read: Callable[[], float]) -> Value:
    try:
        return float(read())
    except pynvml.NVMLError as error:
        return Unavailable(str(error))


def _fill_memory(values: dict[str, Value], handle: Any) -> None:
    names = ("total", "reserved", "free", "used")
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        values.update({f"memory_{name}_bytes": Unavailable(str(error)) for name in names})
        return
    values.update({f"memory_{name}_bytes": float(getattr(memory, name)) for name in names})


def _fill_utilization(values: dict[str, Value], handle: Any) -> None:
    try:
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    except pynvml.NVMLError as error:
        missing = Unavailable(str(error))
        values["gpu_busy_pct"] = values["memory_controller_busy_pct"] = missing
        return
    values["gpu_busy_pct"] = float(rates.gpu)
    values["memory_controller_busy_pct"] = float(rates.memory)


_SCALARS: dict[str, Callable[[Any], float]] = {
    "power_w": lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1000,
    "sm_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM),
    "temperature_c": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
    "throttle_reasons": lambda h: pynvml.nvmlDeviceGetCurrentClocksEventReasons(h),
}


class _Gpm:
    """DRAM bandwidth as a share of the peak, between one reading and the next."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples: list[Any] = []
        self._why = "the first of two samples was just taken"
        try:
            support = pynvml.nvmlGpmQueryDeviceSupport(handle)
            if not support.isSupportedDevice:
                self._why = "GPM needs a Hopper GPU or newer"
                return
            self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
            pynvml.nvmlGpmSampleGet(handle, self._samples[0])
        except pynvml.NVMLError as error:
            self._why = str(error)
            self.close()
        self._first = True

    def read(self) -> Value:
        if not self._samples:
            return Unavailable(self._why)
        if self._first:
            self._first = False
            return Unavailable(self._why)
        previous, current = self._samples
        try:
            pynvml.nvmlGpmSampleGet(self._handle, current)
            request = pynvml.c_nvmlGpmMetricsGet_t()
            request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = 1
            request.sample1, request.sample2 = previous, current
            request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
            pynvml.nvmlGpmMetricsGet(request)
        except pynvml.NVMLError as error:
            return Unavailable(str(error))
        self._samples = [current, previous]
        if request.metrics[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return Unavailable(f"NVML return code {request.metrics[0].nvmlReturn}")
        return float(request.metrics[0].value)

    def close(self) -> None:
        for sample in self._samples:
            pynvml.nvmlGpmSampleFree(sample)
        self._samples = []
