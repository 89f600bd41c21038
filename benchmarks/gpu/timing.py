"""Times work on a device by marks in its stream, best and median of repetitions."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from service.device.cuda.runtime import CudaRuntime, Runtime, StandInRuntime
from telemetry.facts.clock import MonotonicClock


def runtime_of(device: torch.device) -> Runtime:
    """The device's own, or a CPU that stands in."""
    return CudaRuntime(device) if device.type == "cuda" else StandInRuntime(MonotonicClock())


def timed_ms(
    runtime: Runtime,
    run: Callable[[], object],
    rounds: int = 10,
    each: int = 5,
    before: Callable[[], object] | None = None,
) -> dict[str, float]:
    """The time in ms of one call, over `rounds` of `each` calls, after a first that does not count.
    With `before`, which is not timed, a round is one call behind it."""
    run()
    if before is not None:
        each = 1
    found: list[float] = []
    for _ in range(rounds):
        begin, end = runtime.mark(), runtime.mark()
        if before is not None:
            before()
        begin.record()
        for _ in range(each):
            run()
        end.record()
        end.wait()
        found.append(end.after_ns(begin) / each / 1e6)
    return {"best": min(found), "median": statistics.median(found)}


def flushed(device: torch.device, mib: int) -> Callable[[], object]:
    """Empties the device's caches: what is timed behind it reads memory. It takes the device
    longer than it takes the host to ask for what comes next."""
    much = torch.empty(mib << 18, dtype=torch.float32, device=device)
    return much.zero_
