"""What the first GPU's hardware counters say of memory traffic, and in what state it is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml
import torch

from benchmarks.machine import machine
from telemetry.facts.base import Unavailable, Value
from telemetry.facts.clock import Clock
from telemetry.host.gpu_device import Device, driver_version, read_device, visible_devices
from telemetry.host.gpu_gpm import Gpm
from telemetry.host.gpu_peaks import peak_bytes_per_s

_STATE = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "clock_events")

Found = TypeVar("Found")


def gpu_state() -> dict[str, float | str | None]:
    """Clocks, heat and power, and what holds the clocks down; nothing is ever set."""
    found = _of_first_device(_state)
    return {"unavailable": found.why} if isinstance(found, Unavailable) else found


def about(device: str) -> dict[str, Any]:
    """What the head of a result says: when, on which machine, and on which GPU if on any."""
    on_gpu = device == "cuda" and torch.cuda.is_available()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": machine(),
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "gpu_state": gpu_state() if on_gpu else None,
    }


def counted_bytes_per_s(run: Callable[[], object], clock: Clock) -> Value:
    """DRAM traffic while `run` runs, which must take between 100 ms and 5 s."""
    return _of_first_device(lambda device: _counted(device, run, clock))


def _of_first_device(use: Callable[[Device], Found]) -> Found | Unavailable:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Unavailable(str(error))
    try:
        devices = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return use(devices[0]) if devices else Unavailable("the driver shows no GPU")
    except pynvml.NVMLError as error:
        return Unavailable(str(error))
    finally:
        pynvml.nvmlShutdown()


def _state(device: Device) -> dict[str, float | str | None]:
    values = read_device(device)
    found: dict[str, float | str | None] = {"driver": driver_version()}
    for quantity in _STATE:
        value = values[quantity]
        found[quantity] = f"unavailable: {value.why}" if isinstance(value, Unavailable) else value
    return found


def _counted(device: Device, run: Callable[[], object], clock: Clock) -> Value:
    peak = peak_bytes_per_s(device)
    if peak is None:
        return Unavailable("the driver does not tell how fast the memory can be")
    gpm = Gpm(device)
    try:
        gpm.read(clock.now_ns())
        run()
        share = gpm.read(clock.now_ns())["dram_bandwidth_pct"]
    finally:
        gpm.close()
    return share if isinstance(share, Unavailable) else share / 100 * peak
