"""What devices measured of slow steps: a lower clock, a slow rank, a gap before each step, another
process on the GPU.

It decides only what it can show: without a GPU, or without the quantity, there is no answer, and
the machine's other measurements decide (`attribution.slow_steps`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnosis.attribution.charges import EngineTime
from diagnosis.attribution.device_thresholds import (
    DRAM_MORE,
    LOWER_CLOCK,
    MEMORY_MORE_BYTES,
    SLOWED_MORE,
)
from diagnosis.attribution.thresholds import MOST
from diagnosis.detection.gpus import DeviceUsual, GpuUsual, gpus_of
from diagnosis.detection.reference import Reference
from diagnosis.detection.step_cost import Cost
from diagnosis.detection.steps import Steps
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement
from diagnosis.symptoms import Symptom
from telemetry.facts.reasons import ClockEvent

S, M = Symptom, Measurement


class Clocked(NamedTuple):
    """A GPU that runs at a lower clock than usual, and NVML's reasons."""

    gpu: str
    now_mhz: float
    usual_mhz: float
    reasons: str


def device_cause(
    found: EngineTime, window: Window, reference: Reference, lost_ns: float
) -> Symptom | None:
    """The cause of `lost_ns` of slow steps, by what devices measured; None where they do not say.
    Its claim and culprit go to `found`."""
    gpus = gpus_of(window.counts)
    clocked = _clocked(gpus, reference)
    _take(found, gpus, reference, clocked)
    bubble_ns = _beyond(window.steps, "bubble_ns", reference.device.bubble_share)
    skew_ns = _beyond(window.steps, "skew_ns", reference.device.skew_share)
    found.facts |= {
        M.DEVICE_BUBBLE: None if bubble_ns is None else bubble_ns / 1e6,
        M.RANK_SKEW: None if skew_ns is None else skew_ns / 1e6,
    }
    if skew_ns is not None and skew_ns >= MOST * lost_ns:
        return _slow_rank(found, window, gpus, clocked)
    if bubble_ns is not None and bubble_ns >= MOST * lost_ns:
        found.claims[S.HOST_STALL] = "the device waits for the next step: the loop launches late"
        return S.HOST_STALL
    if clocked is not None:
        found.claims[S.THROTTLED] = _clock_words(clocked)
        found.culprits[S.THROTTLED] = (f"gpu {clocked.gpu}",)
        return S.THROTTLED
    shared = _shared(gpus, reference)
    if shared is not None:
        found.claims[S.MEMORY_BANDWIDTH] = (
            f"another process is on GPU {shared}: steps that read memory are slower than they were"
        )
        found.culprits[S.MEMORY_BANDWIDTH] = (f"gpu {shared}",)
        return S.MEMORY_BANDWIDTH
    return None


def device_symptom(window: Window, reference: Reference, cost: Cost) -> Symptom | None:
    """The cause of the slow steps of a window, by what devices measured."""
    if not reference.gpus and reference.device == DeviceUsual():
        return None
    over = window.steps.forward_ns - cost.forward_ns(window.steps)
    return device_cause(EngineTime(), window, reference, max(1.0, float(over.sum())))


def _clocked(gpus: dict[str, GpuUsual], reference: Reference) -> Clocked | None:
    """The GPU whose clock is lowest, of those below usual for a reason that was not there."""
    lowest: Clocked | None = None
    for gpu, now in gpus.items():
        usual = reference.gpus.get(gpu)
        if usual is None or now.sm_clock_mhz is None or usual.sm_clock_mhz is None:
            continue
        if now.slowed_share is None or now.sm_clock_mhz >= LOWER_CLOCK * usual.sm_clock_mhz:
            continue
        if now.slowed_share - (usual.slowed_share or 0.0) >= SLOWED_MORE and (
            lowest is None or now.sm_clock_mhz < lowest.now_mhz
        ):
            names = (event.name or "" for event in ClockEvent(now.events))
            reasons = ", ".join(sorted(name.lower() for name in names))
            lowest = Clocked(gpu, now.sm_clock_mhz, usual.sm_clock_mhz, reasons)
    return lowest


def _clock_words(clocked: Clocked) -> str:
    return (
        f"GPU {clocked.gpu} runs at {clocked.now_mhz:.0f} MHz and not at {clocked.usual_mhz:.0f} "
        f"({clocked.reasons}): all steps are slower"
    )


def _slow_rank(
    found: EngineTime, window: Window, gpus: dict[str, GpuUsual], clocked: Clocked | None
) -> Symptom:
    """The rank that the others wait for. Its GPU has its number; without a GPU it is a process that
    does not get its CPU."""
    ranks = window.steps.slowest_rank
    known = ranks[~np.isnan(ranks)].astype(int)
    rank = int(np.bincount(known).argmax()) if len(known) else None
    symptom = S.THROTTLED if gpus else S.CPU_STARVATION
    name = "one rank" if rank is None else f"rank {rank}"
    words = f"{name} is slower than the others, which wait for it"
    if clocked is not None and clocked.gpu == str(rank):
        words = f"{words}; {_clock_words(clocked)}"
    found.claims[symptom] = words
    found.culprits[symptom] = () if rank is None else (name,)
    return symptom


def _shared(gpus: dict[str, GpuUsual], reference: Reference) -> str | None:
    """A GPU with memory in use that is not the engine's, or with more traffic than it makes."""
    for gpu, now in gpus.items():
        usual = reference.gpus.get(gpu)
        if usual is None:
            continue
        memory, before = now.memory_used_bytes, usual.memory_used_bytes
        if memory is not None and before is not None and memory > before + MEMORY_MORE_BYTES:
            return gpu
        dram, usual_dram = now.dram_bandwidth_pct, usual.dram_bandwidth_pct
        if dram is not None and usual_dram and dram > DRAM_MORE * usual_dram:
            return gpu
    return None


def _beyond(steps: Steps, column: str, usual_share: float | None) -> float | None:
    """ns of the window beyond the usual share; None where it is not measured."""
    if usual_share is None or not len(steps):
        return None
    spent = getattr(steps, column)
    known = ~np.isnan(spent)
    if not known.any():
        return None
    return max(0.0, float((spent - usual_share * steps.turn_ns)[known].sum()))


def _take(
    found: EngineTime, gpus: dict[str, GpuUsual], reference: Reference, clocked: Clocked | None
) -> None:
    """Measurements of the GPU that is slowed, else of the first."""
    if not gpus:
        return
    gpu = min(gpus) if clocked is None else clocked.gpu
    now, usual = gpus[gpu], reference.gpus.get(gpu)
    memory, before = now.memory_used_bytes, None if usual is None else usual.memory_used_bytes
    more = None if memory is None or before is None else (memory - before) / 2**30
    found.facts |= {
        M.GPU_CLOCK: now.sm_clock_mhz,
        M.USUAL_GPU_CLOCK: None if usual is None else usual.sm_clock_mhz,
        M.GPU_SLOWED_SHARE: now.slowed_share,
        M.GPU_TEMPERATURE: now.temperature_c,
        M.GPU_POWER: now.power_w,
        M.GPU_MEMORY_MORE: more,
        M.GPU_DRAM: now.dram_bandwidth_pct,
        M.USUAL_GPU_DRAM: None if usual is None else usual.dram_bandwidth_pct,
    }
    found.has_gpu = True
