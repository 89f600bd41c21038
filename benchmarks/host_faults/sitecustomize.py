"""Makes a process stand still when it is told to, from outside the product.

Python imports this in every process that has this folder on PYTHONPATH. On a signal the main
thread carries out the command that it finds in `PHASESCOPE_FAULTS/<pid>.command` and writes
when it began and ended to `<pid>.truth`. Nothing of it goes to telemetry.

    gc          a full collection, as long as the heap makes it
    heap N      grow the heap to N containers (a collection settles them)
    sleep MS    in the gateway: at once, on its event loop; in the engine: before the loop
    spin MS     reads its commands again, sleeping or computing
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

SIGNAL = signal.SIGRTMIN + 5
_heap: list[list[int]] = []
_to_do: list[Callable[[], None]] = []


def _spin(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def _grow(count: int) -> None:
    gc.disable()
    del _heap[count:]
    _heap.extend([] for _ in range(count - len(_heap)))
    gc.enable()
    gc.collect()


def _work(command: str, value: str) -> Callable[[], object]:
    if command == "gc":
        return gc.collect
    if command == "heap":
        return lambda: _grow(int(value))
    block = time.sleep if command == "sleep" else _spin
    return lambda: block(float(value) / 1000)


def _in_engine_loop(work: Callable[[], None]) -> bool:
    """Leave it to the engine's loop, where it reads commands between two steps."""
    host: Any = sys.modules.get("service.process.engine_main")
    if host is None:
        return False
    if not hasattr(host.GatewayConnection, "unhindered_receive"):
        host.GatewayConnection.unhindered_receive = host.GatewayConnection.receive

        def receive(gateway: Any, wait_s: float | None) -> Any:
            while _to_do:
                _to_do.pop()()
            return gateway.unhindered_receive(wait_s)

        host.GatewayConnection.receive = receive
    _to_do.append(work)
    return True


def _on_signal(number: int, frame: FrameType | None) -> None:
    folder = Path(os.environ["PHASESCOPE_FAULTS"])
    command, value = (folder / f"{os.getpid()}.command").read_text().split()
    work = _work(command, value)

    def carry_out() -> None:
        begin_ns = time.perf_counter_ns()
        work()
        end_ns = time.perf_counter_ns()
        with (folder / f"{os.getpid()}.truth").open("a") as file:
            file.write(f"{command} {begin_ns} {end_ns}\n")

    if command in ("gc", "heap") or not _in_engine_loop(carry_out):
        carry_out()


if "PHASESCOPE_FAULTS" in os.environ:
    signal.signal(SIGNAL, _on_signal)
