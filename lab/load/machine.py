"""The machine that the client runs on, for the record."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from lab.load.result import Machine


def this_machine() -> Machine:
    """What /proc and the standard library tell; a value that cannot be read is None."""
    return Machine(
        cpu=_field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        cores=_cores(),
        memory_gib=_memory_gib(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
    )


def _cores() -> int:
    """The number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float | None:
    total = _field("/proc/meminfo", "MemTotal")
    return None if total is None else round(int(total.split()[0]) / (1 << 20), 1)


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return None
