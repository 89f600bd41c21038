"""What this machine is, and how fast it is right now.

A shared machine drifts by a third between minutes. So each repetition is bracketed by the same
three measurements, made in a process of their own while every server stands still.

    python -m benchmarks.peers.machine        prints them as JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pynvml

from benchmarks.machine import CORES, machine
from benchmarks.peers.layout import REPOSITORY, PeerError
from telemetry.host.gpu_device import visible_devices


def about() -> dict[str, Any]:
    return machine() | {"load_average_1_min": os.getloadavg()[0]}


def gpu_name() -> str | None:
    """That of the first GPU, where there is one."""
    try:
        pynvml.nvmlInit()
        devices = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return pynvml.nvmlDeviceGetName(devices[0].parent) if devices else None
    except pynvml.NVMLError:
        return None


def calibrate() -> dict[str, float]:
    """The figures of a fresh process."""
    command = [sys.executable, "-m", "benchmarks.peers.machine"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode:
        raise PeerError(f"calibration failed: {done.stderr.decode(errors='replace')[-300:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure() -> dict[str, float]:
    """torch is imported only here, in the process of its own."""
    import torch

    from benchmarks.calibration import matrix_gflop_per_s, memory_read_gb_per_s

    figures: dict[str, float | None] = {
        "memory_read_gb_s": memory_read_gb_per_s(CORES),
        "matmul_float32_gflop_s": matrix_gflop_per_s(torch.float32, CORES),
        "matmul_bfloat16_gflop_s": matrix_gflop_per_s(torch.bfloat16, CORES),
    }
    return {name: round(value, 2) for name, value in figures.items() if value is not None}


if __name__ == "__main__":
    print(json.dumps(_measure()))
