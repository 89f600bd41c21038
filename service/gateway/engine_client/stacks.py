"""Stacks of the threads of a process that hangs.

A running process gets a signal, on which `faulthandler` writes the stacks from C code, whatever
holds the interpreter lock. A stopped process handles no signal: for that, py-spy reads the stacks
from its memory, if it is installed, and /proc has the state of each thread. Lines have files, line
numbers and functions; never arguments, locals, prompts or tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from service.process.heartbeat import STACKS_SIGNAL
from telemetry.facts.reasons import StackSource
from telemetry.journal.watchdog import process_state

STOPPED = ("T", "t")
_POLL_S = 0.02
_SIGNAL_TIMEOUT_S = 1.0
_PY_SPY_TIMEOUT_S = 5.0
_MAX_BYTES = 64 * 1024
_MAX_LINES = 400
_MAX_LINE_CHARACTERS = 240


@dataclass(frozen=True, slots=True)
class Stacks:
    """`state` is the process state of /proc, one letter; None if it cannot be read."""

    state: str | None
    source: StackSource
    lines: tuple[str, ...]


async def stacks_of(pid: int, written: FileIO) -> Stacks:
    """The stacks of process `pid`; takes six seconds at most. The process writes its stacks to
    `written`."""
    state = process_state(pid)
    found = "" if state in STOPPED else await _dump_by_signal(pid, written)
    source = StackSource.FAULTHANDLER
    if not found:
        found, source = await _dump_by_py_spy(pid), StackSource.PY_SPY
    lines = _truncated(found.splitlines())
    if state in STOPPED or not lines:
        kernel = await asyncio.to_thread(kernel_lines, pid)
        source = source if lines else StackSource.KERNEL if kernel else StackSource.NOBODY
        lines += kernel
    return Stacks(state, source, tuple(lines[:_MAX_LINES]))


def kernel_lines(pid: int) -> list[str]:
    """Name, state, wait channel and system call of each thread, and its kernel stack where that
    is readable, from /proc."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for thread in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            state = process_state(int(thread.name)) or "?"
            waits = _read(thread / "wchan")
            call = _read(thread / "syscall").split(" ", 1)[0]
            parts = [f"state {state}"]
            parts += [f"waits in {waits}"] if waits not in ("", "0") else []
            parts += [f"system call {call}"] if call.isdigit() else []
            found.append(f"Thread {thread.name} ({_read(thread / 'comm')}): {', '.join(parts)}")
            if state not in STOPPED:  # the kernel stack of a stopped thread says nothing more
                found += [f"  kernel: {line}" for line in _read(thread / "stack").splitlines()]
    return _truncated(found)


async def _dump_by_signal(pid: int, written: FileIO) -> str:
    """What the process writes on the signal, once it has stopped writing; may be empty."""
    with contextlib.suppress(OSError):
        written.truncate(0)
        written.seek(0)  # both processes share the file offset
        os.kill(pid, STACKS_SIGNAL)
        seen = 0
        for _ in range(round(_SIGNAL_TIMEOUT_S / _POLL_S)):
            await asyncio.sleep(_POLL_S)
            size = os.fstat(written.fileno()).st_size
            if size and size == seen:
                return os.pread(written.fileno(), _MAX_BYTES, 0).decode(errors="replace")
            seen = size
    return ""


async def _dump_by_py_spy(pid: int) -> str:
    """The stacks from py-spy, without stopping the process; empty if it is not installed or not
    permitted."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    words = (program, "dump", "--nonblocking", "--pid", str(pid))
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=nothing)
    except OSError:
        return ""
    try:
        async with asyncio.timeout(_PY_SPY_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output[:_MAX_BYTES].decode(errors="replace") if process.returncode == 0 else ""


def _truncated(lines: list[str]) -> list[str]:
    return [line[:_MAX_LINE_CHARACTERS] for line in lines if line.strip()][:_MAX_LINES]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
