"""Reads one GPU, or one MIG instance of it, through NVML: each quantity is a value or a reason.

Nothing here sets anything. Calls that block are left out: PCIe traffic comes from byte counters,
because NVML's throughput call waits 20 ms for each direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from telemetry.facts.base import Unavailable, Value

Values = dict[str, Value]
Handle = Any  # NVML's opaque pointer


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or MIG instance. `gpu` is the index, as in `0`, or index and instance, as in `0:7`.
    `handle` is that of the instance, `parent` that of the whole GPU; without MIG they are one."""

    gpu: str
    handle: Handle
    parent: Handle
    instance_id: int | None = None


def find_devices() -> list[Device]:
    """All GPUs that the driver shows us. Raises NVMLError."""
    found: list[Device] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        parent = pynvml.nvmlDeviceGetHandleByIndex(index)
        instances = _mig_instances(str(index), parent)
        found += instances or [Device(str(index), parent, parent)]
    return found


def visible_devices(visible: str | None) -> list[Device]:
    """The GPUs that `visible`, the value of CUDA_VISIBLE_DEVICES, leaves to a program, in its
    order: NVML shows all. Numbers are NVML's, which are CUDA's where all GPUs are of one kind.
    Raises NVMLError."""
    devices = find_devices()
    if visible is None:
        return devices
    found: list[Device] = []
    for name in visible.split(","):
        named = [one for one in devices if _is_named(one, name.strip())]
        if not named:  # nothing behind it counts
            break
        found += [one for one in named if one not in found]
    return found


def _is_named(device: Device, name: str) -> bool:
    """Whether `name` names the device: by the number of a GPU, or by the beginning of a UUID."""
    if not name:
        return False
    if name.isdecimal():
        return device.gpu.partition(":")[0] == name
    try:
        return str(pynvml.nvmlDeviceGetUUID(device.handle)).startswith(name)
    except pynvml.NVMLError:
        return False


def _mig_instances(index: str, parent: Handle) -> list[Device]:
    """The MIG instances of a GPU; empty if MIG is off or not supported, or has no instance."""
    found: dict[int, Device] = {}
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(parent)
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(parent) if current else 0
    except pynvml.NVMLError:
        return []
    for number in range(count):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, number)
            instance_id = int(pynvml.nvmlDeviceGetGpuInstanceId(handle))
        except pynvml.NVMLError:  # no instance has this number
            continue
        found.setdefault(instance_id, Device(f"{index}:{instance_id}", handle, parent, instance_id))
    return list(found.values())


def attempt(read: Callable[[], float]) -> Value:
    """The value, or NVML's reason for having none."""
    try:
        return float(read())
    except pynvml.NVMLError as error:
        return Unavailable(str(error))


def name_of(device: Device) -> str | None:
    """The product name of the GPU; None if the driver does not report it."""
    try:
        label = pynvml.nvmlDeviceGetName(device.handle)
    except pynvml.NVMLError:
        return None
    return label.decode() if isinstance(label, bytes) else str(label)


def driver_version() -> str | None:
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
    return version.decode() if isinstance(version, bytes) else str(version)


def read_device(device: Device) -> Values:
    """All quantities that need no state between two readings."""
    values: Values = {}
    _fill(values, _MEMORY, lambda: _memory(device.handle))
    _fill(values, ("gpu_busy_pct", "memory_controller_busy_pct"), lambda: _rates(device.handle))
    for quantity, read in _SCALARS.items():
        values[quantity] = attempt(lambda read=read: read(device.parent))  # type: ignore[misc]
    _fill(values, _REMAPPED, lambda: pynvml.nvmlDeviceGetRemappedRows(device.parent))
    _fill_fields(values, device.parent)
    return values


_MEMORY = ("memory_total_bytes", "memory_reserved_bytes", "memory_free_bytes", "memory_used_bytes")
_REMAPPED = (
    "remapped_rows_corrected", "remapped_rows_uncorrected", "remap_pending", "remap_failed",
)  # fmt: skip


def _fill(values: Values, names: Sequence[str], read: Callable[[], Sequence[float]]) -> None:
    """Add the quantities of one call, or its error as the reason for all of them."""
    try:
        values.update(zip(names, map(float, read()), strict=True))
    except pynvml.NVMLError as error:
        values.update(dict.fromkeys(names, Unavailable(str(error))))


def _memory(handle: Handle) -> Sequence[float]:
    # version 2: what the driver reserves for itself does not count as used
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return (memory.total, memory.reserved, memory.free, memory.used)


def _rates(handle: Handle) -> Sequence[float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return (rates.gpu, rates.memory)


def _clock_events(handle: Handle) -> float:
    try:
        return float(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError_FunctionNotFound:  # drivers before 535 have it by its old name
        return float(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _ecc(handle: Handle, kind: int) -> float:
    return float(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))


_SCALARS: dict[str, Callable[[Handle], float]] = {
    "power_w": lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1000,
    "power_limit_w": lambda h: pynvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
    "energy_j": lambda h: pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,
    "sm_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
    "sm_clock_max_mhz": lambda h: pynvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM),
    "temperature_c": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
    "clock_events": _clock_events,
    "ecc_corrected": lambda h: _ecc(h, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "ecc_uncorrected": lambda h: _ecc(h, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
}

# quantity: (field, what one unit of it is). The average power is left out: it takes 3 ms.
_FIELDS: dict[str, tuple[int, float]] = {
    "power_instant_w": (pynvml.NVML_FI_DEV_POWER_INSTANT, 1e-3),
    "memory_temperature_c": (pynvml.NVML_FI_DEV_MEMORY_TEMP, 1),
    "pcie_sent_bytes": (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1),
    "pcie_received_bytes": (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 1),
    "pcie_replays": (pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, 1),
    "power_capped_s": (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, 1e-9),
    "thermally_slowed_s": (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 1e-9),
    "thermally_halved_s": (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 1e-9),
    "power_braked_s": (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, 1e-9),
}
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _fill_fields(values: Values, handle: Handle) -> None:
    """Add all fields, read in one call; each has its own return code."""
    try:
        found = pynvml.nvmlDeviceGetFieldValues(handle, [field for field, _ in _FIELDS.values()])
    except pynvml.NVMLError as error:
        values.update(dict.fromkeys(_FIELDS, Unavailable(str(error))))
        return
    for (quantity, (_, unit)), item in zip(_FIELDS.items(), found, strict=True):
        if item.nvmlReturn != pynvml.NVML_SUCCESS:
            values[quantity] = Unavailable(str(pynvml.NVMLError(item.nvmlReturn)))
        elif item.valueType >= len(_MEMBERS):
            values[quantity] = Unavailable(f"a value of unknown type {item.valueType}")
        else:
            values[quantity] = getattr(item.value, _MEMBERS[item.valueType]) * unit


_CLOCK_EVENTS = {
    pynvml.nvmlClocksEventReasonGpuIdle: "gpu_idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "applications_clocks_setting",
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display_clock_setting",
}


def clock_event_names(mask: int) -> tuple[str, ...]:
    """The reasons for lowered clocks in NVML's mask; a bit without a name is given as a number."""
    names = [name for bit, name in _CLOCK_EVENTS.items() if mask & bit]
    rest = mask & ~sum(_CLOCK_EVENTS)
    return tuple(names) + ((f"{rest:#x}",) if rest else ())
