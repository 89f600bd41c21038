"""Where the threads of another process are, when that process does not answer.

A process that runs is asked by a signal, which C code in it answers (`faulthandler`) whatever
holds its interpreter lock. One that is stopped answers nothing until it is continued: of that one
the kernel tells what it can, and py-spy, where it is installed, reads the stacks from its memory.
Lines hold files, line numbers and functions. Never arguments, locals, prompts or tokens.
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
_ANSWER_WITHIN_S = 1.0
_PY_SPY_WITHIN_S = 5.0
_MOST_BYTES = 64 * 1024
_MOST_LINES = 400
_MOST_LETTERS = 240


@dataclass(frozen=True, slots=True)
class Stacks:
    """`state` is the kernel's letter for the process, None where it does not tell."""

    state: str | None
    source: StackSource
    lines: tuple[str, ...]


async def stacks_of(pid: int, written: FileIO) -> Stacks:
    """Bounded: six seconds at most. `written` is where the process writes its stacks."""
    state = process_state(pid)
    found = "" if state in STOPPED else await _asked(pid, written)
    source = StackSource.FAULTHANDLER
    if not found:
        found, source = await _from_outside(pid), StackSource.PY_SPY
    lines = _cut(found.splitlines())
    if state in STOPPED or not lines:
        kernel = await asyncio.to_thread(kernel_lines, pid)
        source = source if lines else StackSource.KERNEL if kernel else StackSource.NOBODY
        lines += kernel
    return Stacks(state, source, tuple(lines[:_MOST_LINES]))


def kernel_lines(pid: int) -> list[str]:
    """What /proc tells of each thread: its name, its state and what it waits for in the kernel,
    with the kernel's own stack where that may be read."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for thread in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            state = process_state(int(thread.name)) or "?"
            waits = _read(thread / "wchan")
            call = _read(thread / "syscall").split(" ", 1)[0]
            facts = [f"state {state}"]
            facts += [f"waits in {waits}"] if waits not in ("", "0") else []
            facts += [f"system call {call}"] if call.isdigit() else []
            found.append(f"Thread {thread.name} ({_read(thread / 'comm')}): {', '.join(facts)}")
            if state not in STOPPED:  # all of those are in the same place
                found += [f"  kernel: {line}" for line in _read(thread / "stack").splitlines()]
    return _cut(found)


async def _asked(pid: int, written: FileIO) -> str:
    """What the process writes at a signal, once it writes no more; empty when it writes nothing."""
    with contextlib.suppress(OSError):
        written.truncate(0)
        written.seek(0)  # both ends have one place in the file
        os.kill(pid, STACKS_SIGNAL)
        seen = 0
        for _ in range(round(_ANSWER_WITHIN_S / _POLL_S)):
            await asyncio.sleep(_POLL_S)
            size = os.fstat(written.fileno()).st_size
            if size and size == seen:
                return os.pread(written.fileno(), _MOST_BYTES, 0).decode(errors="replace")
            seen = size
    return ""


async def _from_outside(pid: int) -> str:
    """What py-spy reads, which stops nothing; empty where it is not installed or not permitted."""
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
        async with asyncio.timeout(_PY_SPY_WITHIN_S):
            told, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return told[:_MOST_BYTES].decode(errors="replace") if process.returncode == 0 else ""


def _cut(lines: list[str]) -> list[str]:
    return [line[:_MOST_LETTERS] for line in lines if line.strip()][:_MOST_LINES]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
