"""The processes of a vLLM: which is which, their CPU time, signals to them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

CORE_NAME, WORKER_NAME = "VLLM::EngineCore", "VLLM::Worker"
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


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


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """To those that live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
