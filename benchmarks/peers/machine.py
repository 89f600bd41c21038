"""What this machine is, and how fast it is right now.

A shared machine drifts by a third between minutes. So each repetition is bracketed by the same
three measurements, made in a process of their own while every server stands still.

    python -m benchmarks.peers.machine        prints them as JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.layout import REPOSITORY, PeerError
from benchmarks.serving import machine as basic

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_bf16", "amx_int8")
_READ_MIB, _SIDE, _ROUNDS = 512, 1024, 5


def cpu_flags() -> list[str]:
    """Those instruction sets that decide which kernels a peer picks."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return [flag for flag in _FLAGS if flag in line.split()]
    return []


def has_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 itself."""
    return bool({"avx512_bf16", "amx_bf16"} & set(cpu_flags()))


def about() -> dict[str, Any]:
    memory = {line.split(":")[0]: line for line in Path("/proc/meminfo").read_text().splitlines()}
    total_gib = int(memory["MemTotal"].split()[1]) / 1024**2
    load = Path("/proc/loadavg").read_text().split()
    return {
        **basic(),
        "memory_gib": round(total_gib, 1),
        "flags": cpu_flags(),
        "load_average_1_min": float(load[0]),
    }


def available_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024**2
    return 0.0


def calibrate() -> dict[str, float]:
    """The figures of a fresh process."""
    command = [sys.executable, "-m", "benchmarks.peers.machine"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode:
        raise PeerError(f"calibration failed: {done.stderr.decode(errors='replace')[-300:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure() -> dict[str, float]:
    import torch

    torch.set_num_threads(2)
    words = torch.ones(_READ_MIB * 1024 * 256, dtype=torch.float32)
    side = torch.rand(_SIDE, _SIDE)
    figures = {
        "memory_read_gb_s": words.nbytes / 1e9 / _best_s(lambda: words.sum()),
        "matmul_float32_gflop_s": 2 * _SIDE**3 / 1e9 / _best_s(lambda: side @ side),
    }
    if has_bf16():
        half = side.bfloat16()
        figures["matmul_bfloat16_gflop_s"] = 2 * _SIDE**3 / 1e9 / _best_s(lambda: half @ half)
    return {name: round(value, 2) for name, value in figures.items()}


def _best_s(work: Callable[[], object]) -> float:
    """The quickest of a few rounds: what the machine can do, not what disturbed it."""
    work()
    spent: list[float] = []
    for _ in range(_ROUNDS):
        begin_s = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begin_s)
    return min(spent)


if __name__ == "__main__":
    print(json.dumps(_measure()))
