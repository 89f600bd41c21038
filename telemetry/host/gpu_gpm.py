"""GPM: rates from a GPU's hardware counters between two samples, on Hopper and newer.

The counters are refreshed about every 100 ms, so two samples that are closer give wrong rates; two
that are far apart give the mean of a long time. Under MIG the whole GPU has no samples; each
instance has its own.
"""

from __future__ import annotations

import math

import pynvml

from telemetry.facts.base import Unavailable, Value
from telemetry.host.gpu_device import Device, Handle, Values

LEAST_APART_NS = 100_000_000
MOST_APART_NS = 5_000_000_000
_MIB = float(1 << 20)

# quantity: (metric, what one unit of it is)
_METRICS: dict[str, tuple[int, float]] = {
    "dram_bandwidth_pct": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 1),
    "sm_busy_pct": (pynvml.NVML_GPM_METRIC_SM_UTIL, 1),
    "sm_occupancy_pct": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 1),
    "tensor_busy_pct": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 1),
    "nvlink_received_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MIB),
    "nvlink_sent_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MIB),
}


class Gpm:
    """Two sample buffers used in turn; `read` compares a new sample with the last one."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._samples: list[Handle] = []
        self._taken_ns: int | None = None
        self._missing: str | None = None
        try:
            if not pynvml.nvmlGpmQueryDeviceSupport(device.parent).isSupportedDevice:
                self._missing = "GPM needs a Hopper GPU or newer"
                return
            for _ in range(2):
                self._samples.append(pynvml.nvmlGpmSampleAlloc())
        except pynvml.NVMLError as error:
            self._missing = f"GPM: {error}"
            self.close()

    def read(self, now_ns: int) -> Values:
        """Means since the last call, or the reason why there are none."""
        if self._missing is not None:
            return _all_unavailable(self._missing)
        apart_ns = None if self._taken_ns is None else now_ns - self._taken_ns
        if apart_ns is not None and apart_ns < LEAST_APART_NS:
            return _all_unavailable("two samples must be 100 ms apart")
        try:
            self._take(self._samples[1])
            if apart_ns is None:
                values = _all_unavailable("the first of two samples was just taken")
            elif apart_ns > MOST_APART_NS:
                values = _all_unavailable("the last sample was too long ago: a new pair was begun")
            else:
                values = self._compare()
        except pynvml.NVMLError as error:
            self._taken_ns = None
            return _all_unavailable(f"GPM: {error}")
        self._samples.reverse()
        self._taken_ns = now_ns
        return values

    def close(self) -> None:
        for sample in self._samples:
            pynvml.nvmlGpmSampleFree(sample)
        self._samples = []
        self._missing = self._missing or "closed"

    def _take(self, sample: Handle) -> None:
        device = self._device
        if device.instance_id is None:
            pynvml.nvmlGpmSampleGet(device.handle, sample)
        else:
            pynvml.nvmlGpmMigSampleGet(device.parent, device.instance_id, sample)

    def _compare(self) -> Values:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_METRICS)
        request.sample1, request.sample2 = self._samples
        for place, (metric, _) in enumerate(_METRICS.values()):
            request.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(request)
        return {
            quantity: _value(request.metrics[place], unit)
            for place, (quantity, (_, unit)) in enumerate(_METRICS.items())
        }


def _all_unavailable(why: str) -> Values:
    return dict.fromkeys(_METRICS, Unavailable(why))


def _value(metric: Handle, unit: float) -> Value:
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        return Unavailable(f"GPM: {pynvml.NVMLError(metric.nvmlReturn)}")
    if not math.isfinite(metric.value):
        return Unavailable("GPM: no number")
    return float(metric.value) * unit
