"""The machine that figures were measured on, and how figures are summed up."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterable
from pathlib import Path

CORES = os.cpu_count() or 1

# instruction sets that decide which kernels a CPU can run
_TELLING_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16",
    "amx_int8",
)  # fmt: skip


def machine() -> dict[str, object]:
    """The facts that a figure depends on; nothing that names this machine in particular."""
    flags = cpu_flags()
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": CORES,
        "instructions": [flag for flag in _TELLING_FLAGS if flag in flags],
        "memory_gib": round(memory_kib("MemTotal") / (1 << 20), 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def cpu_flags() -> frozenset[str]:
    """Instruction sets; empty where the system does not state them."""
    return frozenset((_field("/proc/cpuinfo", "flags") or "").split())


def has_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 itself."""
    return bool({"avx512_bf16", "amx_bf16"} & cpu_flags())


def memory_kib(name: str) -> int:
    """A line of /proc/meminfo, as in MemTotal; 0 where the system does not state it."""
    return int((_field("/proc/meminfo", name) or "0").split()[0])


def rss_kib(pid: int) -> int:
    """Resident memory of a process."""
    stated = _field(f"/proc/{pid}/status", "VmRSS")
    if stated is None:
        raise ProcessLookupError(pid)
    return int(stated.split()[0])


def spread(values: Iterable[float]) -> dict[str, float | int | None]:
    """Median with its range."""
    found = list(values)
    return {
        "median": statistics.median(found) if found else None,
        "min": min(found, default=None),
        "max": max(found, default=None),
        "n": len(found),
    }


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
