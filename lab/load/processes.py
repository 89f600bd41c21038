"""Processes that a run has started end with it, whatever they do; and ports for them.

A server starts others in sessions of their own, so a signal to its group would leave its engine
behind: all that came of it is found in /proc before it is told to stop. A process is known by its
number and its start, because numbers are used again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
PATIENCE_S = 20.0
_POLL_S, _POLLS = 0.02, 500

Known = tuple[int, int]
"""A process: its number, and its start in ticks since the machine's."""


def free_port() -> int:
    """One that nobody listens on now."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """So many different ones: all are held until the last is chosen."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def tree_of(pid: int) -> list[int]:
    """The process and all that descend from it, parents first."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def lives(pid: int) -> bool:
    """Whether it is there and not merely waiting to be reaped by its parent."""
    fields = _fields(pid)
    return fields is not None and fields[0] != "Z"


def ended(process: subprocess.Popen[Any], patience_s: float = PATIENCE_S) -> int:
    """The exit status of a process that is made to end: SIGTERM, then after `patience_s` SIGKILL to
    its group and to all that came of it. For one started with `start_new_session=True`."""
    came: set[Known] = set()
    if process.poll() is None:
        came = _known(tree_of(process.pid))
        _send((pid for pid, _ in came), signal.SIGCONT)  # a stopped process cannot end
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        if process.poll() is None:
            came |= _known(tree_of(process.pid))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    _send(_left(came), signal.SIGKILL)
    status = process.wait()
    pause = threading.Event()
    for _ in range(_POLLS):
        if not _left(came) or pause.wait(_POLL_S):
            break  # before that, the next server would lack their memory
    return status


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _left(known: set[Known]) -> list[int]:
    return [pid for pid, start in known if lives(pid) and _start_of(pid) == start]


def _known(pids: Iterable[int]) -> set[Known]:
    starts = ((pid, _start_of(pid)) for pid in pids)
    return {(pid, start) for pid, start in starts if start is not None}


def _start_of(pid: int) -> int | None:
    fields = _fields(pid)
    return None if fields is None else int(fields[19])


def _fields(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat, from the state on; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
