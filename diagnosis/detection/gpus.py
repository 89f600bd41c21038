"""What GPUs say of themselves: clocks and why they are lower, memory, and the device's own times.

A GPU that is idle lowers its clocks, so only samples while it works count. Every quantity is None
where no sample had it.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

import msgspec
import numpy as np

from diagnosis.detection.counts import Counts
from diagnosis.detection.steps import Steps
from telemetry.facts.host_records import GpuSampled
from telemetry.facts.reasons import ClockEvent

SLOWED = (
    ClockEvent.SW_POWER_CAP
    | ClockEvent.HW_SLOWDOWN
    | ClockEvent.SW_THERMAL_SLOWDOWN
    | ClockEvent.HW_THERMAL_SLOWDOWN
    | ClockEvent.HW_POWER_BRAKE_SLOWDOWN
)
"""Reasons that make a busy GPU slower than it is set to."""


class GpuUsual(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU over a stretch, while it worked: means, the largest memory in use, and the share of
    the samples in which a reason of `SLOWED` held."""

    samples: int
    sm_clock_mhz: float | None = None
    slowed_share: float | None = None
    events: int = 0
    memory_used_bytes: float | None = None
    dram_bandwidth_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class DeviceUsual(msgspec.Struct, frozen=True):
    """Shares of the time of the steps: in which the device had nothing to do between two of them,
    and in which the other ranks waited for the slowest one. None: not measured."""

    bubble_share: float | None = None
    skew_share: float | None = None


def gpus_of(counts: Counts) -> dict[str, GpuUsual]:
    """Each GPU that was sampled while it worked."""
    working: dict[str, list[GpuSampled]] = {}
    for sample in counts.gpus:
        if not (sample.clock_events or 0) & ClockEvent.GPU_IDLE:
            working.setdefault(sample.gpu, []).append(sample)
    return {gpu: _usual(samples) for gpu, samples in working.items()}


def device_usual(steps: Steps) -> DeviceUsual:
    return DeviceUsual(_share(steps, "bubble_ns"), _share(steps, "skew_ns"))


def _share(steps: Steps, column: str) -> float | None:
    """The time in the column as a share of the time of the steps that have it."""
    if not len(steps):
        return None
    spent = getattr(steps, column)
    known = ~np.isnan(spent)
    if not known.any():
        return None
    return float(spent[known].sum()) / max(1.0, float(steps.turn_ns[known].sum()))


def _usual(samples: list[GpuSampled]) -> GpuUsual:
    masks = [one.clock_events for one in samples if one.clock_events is not None]
    events = 0
    for mask in masks:
        events |= mask & SLOWED
    memory = [one.memory_used_bytes for one in samples if one.memory_used_bytes is not None]
    return GpuUsual(
        samples=len(samples),
        sm_clock_mhz=_mean(one.sm_clock_mhz for one in samples),
        slowed_share=sum(bool(mask & SLOWED) for mask in masks) / len(masks) if masks else None,
        events=events,
        memory_used_bytes=max(memory) if memory else None,
        dram_bandwidth_pct=_mean(one.dram_bandwidth_pct for one in samples),
        temperature_c=_mean(one.temperature_c for one in samples),
        power_w=_mean(one.power_w for one in samples),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
