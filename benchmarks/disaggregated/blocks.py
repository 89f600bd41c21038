"""What a block of KV costs on its way: to copy it out of a CPU's cache, and to hash it.

    python -m benchmarks.disaggregated.blocks [--out FILE]

Blocks are as large as those of the default model in bf16. They are copied by numpy, as
`CacheBlocks` does, and by torch, while the cores have nothing else to do and while two processes
for each core are busy; and hashed by BLAKE3 and by BLAKE2b. All ways take turns at each block.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from benchmarks.machine import machine, spread
from service.device.cache.block_bytes import CacheBlocks
from service.fleet.transfer.digests import DIGEST_BYTES

RESULTS = Path(__file__).parents[1] / "results" / "kv_blocks.json"
SHAPE = (30, 2, 600, 3, 16, 64)  # layers, keys and values, blocks, heads, tokens, numbers
PROCESSES = 2  # for each core
START_S = 1.0  # until the processes count


@dataclass
class Storage:
    """A cache of one tensor."""

    storage: tuple[torch.Tensor, ...]
    pages: int


@contextlib.contextmanager
def busy_cores(are_busy: bool) -> Iterator[None]:
    """Processes that only count, two for each core."""
    command = [sys.executable, "-c", "while True: pass"]
    count = PROCESSES * (os.cpu_count() or 1) if are_busy else 0
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        time.sleep(START_S)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def timed_ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begin)


def _rounded(values: list[float]) -> dict[str, float]:
    found = {**spread(values), "mean": sum(values) / len(values)}
    return {name: round(value, 3) for name, value in found.items()}


def copies(whole: torch.Tensor) -> dict[str, Any]:
    """Milliseconds a block, by each way."""
    memory: Any = Storage((whole,), whole.shape[2])
    blocks = CacheBlocks(memory)

    def by_torch(block: int) -> bytes:
        part = whole[:, :, block].contiguous().reshape(-1).view(torch.uint8)
        return part.numpy().tobytes()

    assert blocks.read(1) == by_torch(1)
    found: dict[str, list[float]] = {"numpy": [], "torch": []}
    for block in range(SHAPE[2]):
        found["numpy"].append(timed_ms(lambda b=block: blocks.read(b)))  # type: ignore[misc]
        found["torch"].append(timed_ms(lambda b=block: by_torch(b)))  # type: ignore[misc]
    return {way: _rounded(each) for way, each in found.items()}


def hashes(data: bytes) -> dict[str, Any]:
    """Gigabytes a second, by each way."""
    ways = {
        "blake3": lambda: blake3(data).digest(length=DIGEST_BYTES),
        "blake2b": lambda: hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest(),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(SHAPE[2]):
        for way, work in ways.items():
            found[way].append(len(data) / timed_ms(work) / 1e6)
    return {way: _rounded(each) for way, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    whole = torch.randn(SHAPE).to(torch.bfloat16)
    found: dict[str, Any] = {"machine": machine(), "torch_threads": torch.get_num_threads()}
    for name, are_busy in (("idle cores", False), ("busy cores", True)):
        with busy_cores(are_busy):
            found[f"copy_ms, {name}"] = copies(whole)
    data = whole[:, :, 0].contiguous().view(torch.uint8).numpy().tobytes()
    found["block_bytes"] = len(data)
    found["hash_gb_per_s"] = hashes(data)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
