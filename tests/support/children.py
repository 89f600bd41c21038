"""Processes that a test has started."""

from __future__ import annotations

from pathlib import Path

_EARLIER: set[int] = set()


def forget_children() -> None:
    """Those that run now are not this test's: others in this process may share a server that
    outlives them. To be called before a test that asks for `children`."""
    _EARLIER.clear()
    _EARLIER.update(children())


def children() -> list[int]:
    """The ids of processes that this one has started since, and that have not ended."""
    lists = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for path in lists for pid in path.read_text().split()]
    return [pid for pid in pids if state_of(pid) != "Z" and pid not in _EARLIER]


def state_of(pid: int) -> str:
    """One letter: R runs, S sleeps, T is stopped, Z has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
