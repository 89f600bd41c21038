"""The processes of a vLLM: which is which, their CPU time, stopping them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

CORE_NAME, WORKER_NAME = "VLLM::EngineCore", "VLLM::Worker"
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def tree_of(pid: int) -> list[int]:
    """The process and all that descend from it, parents first."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def named(pids: Iterable[int], name: str) -> int | None:
    """The first whose title begins so. vLLM sets the titles of its processes."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode()):
                return pid
    return None


def cpu_ns(pids: Iterable[int]) -> int:
    """CPU time so far of those that live; a process that has ended counts nothing."""
    return sum(_cpu_ns(pid) for pid in pids)


def _cpu_ns(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) * _TICK_NS


def lives(pid: int) -> bool:
    """Whether it is there and not merely waiting to be reaped by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """To those that live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
