"""Peak bandwidth and peak rate of a GPU, computed from NVML's data.

Bandwidth: two transfers a clock (double data rate) times the highest memory clock times the
width of the bus. It is within 3 % of the data sheets of A100 (2.04 TB/s), L40S (864 GB/s),
H100 (3.35 TB/s) and H200 (4.8 TB/s, stated a little lower than its clock gives).

Operations: multiprocessors times the highest clock times the dense bfloat16 operations that the
tensor cores of one do in a clock. The highest clock is above the boost clock of data sheets,
so the peak is some per cent above theirs. Unknown generations have none.
"""

from __future__ import annotations

import pynvml

from telemetry.host.gpu_device import Device

_TRANSFERS_A_CLOCK = 2

# compute capability: (CUDA cores of a multiprocessor, dense bf16 operations a clock)
_MULTIPROCESSOR = {
    (8, 0): (64, 2048),
    (8, 6): (128, 1024),
    (8, 9): (128, 1024),
    (9, 0): (128, 4096),
    (10, 0): (128, 8192),
}


def peak_bytes_per_s(device: Device) -> float | None:
    """The peak memory bandwidth in bytes/s; None if the driver does not report the data, and for a
    MIG instance, which has only a part."""
    if device.instance_id is not None:
        return None
    try:
        clock_mhz = pynvml.nvmlDeviceGetMaxClockInfo(device.parent, pynvml.NVML_CLOCK_MEM)
        bus_bits = pynvml.nvmlDeviceGetMemoryBusWidth(device.parent)
    except pynvml.NVMLError:
        return None
    return _TRANSFERS_A_CLOCK * clock_mhz * 1e6 * bus_bits / 8 or None


def peak_flop_per_s(device: Device) -> float | None:
    """Dense bfloat16 operations; None as for the bandwidth, and for an unknown generation."""
    if device.instance_id is not None:
        return None
    try:
        capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(device.parent))
        cores = pynvml.nvmlDeviceGetNumGpuCores(device.parent)
        clock_mhz = pynvml.nvmlDeviceGetMaxClockInfo(device.parent, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError:
        return None
    if capability not in _MULTIPROCESSOR:
        return None
    cores_each, operations = _MULTIPROCESSOR[capability]
    return cores / cores_each * operations * clock_mhz * 1e6 or None
