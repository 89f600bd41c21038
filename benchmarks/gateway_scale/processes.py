"""What /proc and the server's own pages say of its two processes."""

from __future__ import annotations

import contextlib
import urllib.request
from collections import Counter
from pathlib import Path

from benchmarks.machine import rss_kib

LOOP = "loop"


def thread_cpu_ns(pid: int) -> Counter[str]:
    """CPU time of each thread by its name; the first thread is the loop's. Threads that have
    ended are in none of them."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = LOOP if task.name == str(pid) else (task / "comm").read_text().strip()
            found[_group(name)] += int((task / "schedstat").read_text().split()[0])
    return found


def _group(name: str) -> str:
    """Threads of one pool together."""
    return name.split("_")[0] if name.startswith(("asyncio", "ThreadPool", "python")) else name


def engine_pid(gateway_pid: int) -> int:
    """The child that is an engine. Raises LookupError."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            words = (process / "cmdline").read_bytes().split(b"\0")
            if parent == gateway_pid and b"engine-process" in words:
                return int(process.name)
    raise LookupError(f"{gateway_pid} has no engine")


def fold_seconds(port: int) -> dict[str, float]:
    """Wall time in each fold since the start, from /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("phasescope_fold_seconds") and 'fold="' in line:
            labels, _, value = line.rpartition(" ")
            if "_created" not in labels.split("{")[0]:
                found[labels.split('fold="')[1].split('"')[0]] = float(value)
    return found


def rss_mib(pid: int) -> float:
    return rss_kib(pid) / 1024
