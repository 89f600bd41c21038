"""What the device gives at most: bytes copied and operations of matrices, measured here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.gpu.timing import timed_ms
from service.device.cuda.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes and operations a second. A copy both reads and writes, and both count; `read` is of
    reading alone."""

    copy: float
    read: float
    matrix: float

    def as_dict(self) -> dict[str, float]:
        return {
            "copy_gb_per_s": self.copy / 1e9,
            "read_gb_per_s": self.read / 1e9,
            "matrix_tflop_per_s": self.matrix / 1e12,
        }


def measured_peaks(runtime: Runtime, copy_mib: int, matrix: int, dtype: torch.dtype) -> Peaks:
    return Peaks(
        copy=copy_bytes_per_s(runtime, copy_mib),
        read=read_bytes_per_s(runtime, copy_mib),
        matrix=matrix_flop_per_s(runtime, matrix, dtype),
    )


def copy_bytes_per_s(runtime: Runtime, mib: int) -> float:
    """Read and written, of a copy within the device's memory."""
    device = runtime.device
    source = torch.empty(mib << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best_ms = timed_ms(runtime, lambda: target.copy_(source))["best"]
    return 2 * source.numel() / best_ms * 1e3


def read_bytes_per_s(runtime: Runtime, mib: int) -> float:
    """How many bytes/s a sum reads, which writes next to nothing, as a decode does."""
    source = torch.ones(mib << 18, dtype=torch.float32, device=runtime.device)
    best_ms = timed_ms(runtime, source.sum)["best"]
    return source.numel() * 4 / best_ms * 1e3


def matrix_flop_per_s(runtime: Runtime, size: int, dtype: torch.dtype) -> float:
    """How many operations a second a square product takes."""
    one, other = (torch.randn(size, size, device=runtime.device).to(dtype) for _ in range(2))
    best_ms = timed_ms(runtime, lambda: one @ other)["best"]
    return 2 * size**3 / best_ms * 1e3
