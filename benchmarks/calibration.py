"""What this machine can do at most, measured beside whatever is compared with it.

Memory read bandwidth and matrix peak are the physical limits of decode and of prefill. A
shared machine gives different ones from minute to minute, so a benchmark calls these
functions between its own measurements and keeps every value (`Limits`): a share of a limit is
only meaningful against the limit of the same minute.

    python -m benchmarks.calibration [--threads 2] [--rounds 5]
"""

from __future__ import annotations

import argparse
import functools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.machine import CORES, has_bf16, machine, spread

READ_BYTES = 1 << 29  # far beyond any last-level cache
ROW_FLOATS = 1024
MATRIX_SIDE = 2048
PASSES = 3


def memory_read_gb_per_s(threads: int) -> float:
    """10^9 bytes read per second from a buffer of 512 MiB, by the fastest of several ways.

    Which way is fastest depends on the CPU and on what else runs, so all are tried.
    """
    return max(memory_read_methods(threads).values())


def memory_read_methods(threads: int) -> dict[str, float]:
    """Each way's best of a few interleaved passes, in 10^9 bytes read per second.

    `copy` counts the bytes it reads and not those it writes, so it is a lower bound.
    """
    floats, target = _buffers()
    half = len(floats) // 2
    rows, ones = floats.view(-1, ROW_FLOATS), torch.ones(ROW_FLOATS)
    parts = np.array_split(floats.numpy(), threads)
    integers = floats.view(torch.int64)
    ways: dict[str, Callable[[], object]] = {
        "sum": lambda: floats.sum(),
        "integer sum": lambda: integers.sum(),
        "dot product": lambda: floats[:half].dot(floats[half:]),
        "matrix by vector": lambda: rows.mv(ones),
        "dot products in own threads": lambda: _in_threads(_dot_halves, parts),
        "copy": lambda: target.copy_(floats[:half]),
    }
    read_bytes = dict.fromkeys(ways, READ_BYTES) | {"copy": READ_BYTES // 2}
    with _threads(threads):
        seconds = _best_seconds(ways)
    return {name: read_bytes[name] / best / 1e9 for name, best in seconds.items()}


def matrix_gflop_per_s(dtype: torch.dtype, threads: int) -> float | None:
    """10^9 operations per second (an addition is one, a product is one) of a square product.

    None for bfloat16 on a CPU without instructions for it: it would measure an emulation.
    The faster of torch's library and, for float32 on all cores, numpy's.
    """
    if dtype is torch.bfloat16 and not has_bf16():
        return None
    left, right, out = _matrices(dtype)
    ways: dict[str, Callable[[], object]] = {
        "torch": lambda: torch.mm(left, right, out=out),
        "torch, transposed": lambda: torch.mm(left, right.t(), out=out),
    }
    if dtype is torch.float32 and threads == CORES:
        a, b, c = left.numpy(), right.numpy(), out.numpy()
        ways["numpy"] = lambda: np.matmul(a, b, out=c)
    with _threads(threads):
        return 2 * MATRIX_SIDE**3 / min(_best_seconds(ways).values()) / 1e9


@dataclass
class Limits:
    """Limits sampled again and again during a benchmark. `bfloat16` stays empty without it."""

    threads: int
    memory_gb_per_s: list[float] = field(default_factory=list)
    float32_gflop_per_s: list[float] = field(default_factory=list)
    bfloat16_gflop_per_s: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """Measure once more; about two seconds."""
        self.memory_gb_per_s.append(memory_read_gb_per_s(self.threads))
        float32 = matrix_gflop_per_s(torch.float32, self.threads)
        assert float32 is not None
        self.float32_gflop_per_s.append(float32)
        bfloat16 = matrix_gflop_per_s(torch.bfloat16, self.threads)
        if bfloat16 is not None:
            self.bfloat16_gflop_per_s.append(bfloat16)

    def summary(self) -> dict[str, object]:
        """Median and range of each; None for what this CPU does not have."""
        values = {
            "memory_gb_per_s": self.memory_gb_per_s,
            "float32_gflop_per_s": self.float32_gflop_per_s,
            "bfloat16_gflop_per_s": self.bfloat16_gflop_per_s,
        }
        found = {name: spread(samples) if samples else None for name, samples in values.items()}
        return {"threads": self.threads, **found}


class _threads:  # noqa: N801  (used as a function)
    """torch computes with so many threads inside the block."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(self._count)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)


def _best_seconds(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Fastest of a few passes, the ways taking turns; one untimed pass first."""
    best = dict.fromkeys(ways, float("inf"))
    for number in range(1 + PASSES):
        for name, way in ways.items():
            begin_s = time.perf_counter()
            way()
            if number:
                best[name] = min(best[name], time.perf_counter() - begin_s)
    return best


@functools.cache
def _buffers() -> tuple[torch.Tensor, torch.Tensor]:
    """What is read, and half as much to copy it to; kept, as touching new pages is slow."""
    floats = torch.full((READ_BYTES // 4,), 1.0)
    return floats, torch.empty(len(floats) // 2)


@functools.cache
def _matrices(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    seed = torch.Generator().manual_seed(1)
    shape = (MATRIX_SIDE, MATRIX_SIDE)
    left, right = (torch.randn(shape, generator=seed).to(dtype) for _ in range(2))
    return left, right, torch.empty(shape, dtype=dtype)


def _dot_halves(part: np.ndarray) -> None:
    half = len(part) // 2
    np.dot(part[:half], part[half : 2 * half])


def _in_threads(work: Callable[[np.ndarray], None], parts: list[np.ndarray]) -> None:
    """One thread a part; numpy lets go of the interpreter while it computes."""
    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.calibration", description=__doc__)
    parser.add_argument("--threads", type=int, default=CORES, help="compute threads")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each limit")
    args = parser.parse_args()
    limits = Limits(args.threads)
    for number in range(1, args.rounds + 1):
        limits.sample()
        print(
            f"round {number}: reads {limits.memory_gb_per_s[-1]:.1f} GB/s, "
            f"float32 products {limits.float32_gflop_per_s[-1]:.0f} GFLOP/s",
            flush=True,
        )
    methods = memory_read_methods(args.threads)
    found = {"machine": machine(), "limits": limits.summary(), "read_methods_gb_per_s": methods}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
