"""Stacks of all threads of both processes, as text: files, line numbers and functions.

No source lines, arguments or locals: what a frame holds may be a prompt.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType

from service.gateway.engine_client.engine_process import EngineProcess
from service.gateway.engine_client.stacks import stacks_of

_FRAMES_MOST = 100


def gateway_stacks() -> list[str]:
    """The stacks of all threads of this process as lines, the innermost call first. Any thread may
    ask."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"Thread {names.get(ident, ident)} (most recent call first):")
        lines += _calls(frame)
    return lines


def _calls(innermost: FrameType) -> list[str]:
    lines: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(lines) < _FRAMES_MOST:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_qualname}')
        frame = frame.f_back
    return lines


def engine_stacks(engine: EngineProcess | None) -> list[str]:
    """The stacks of the engine's process as lines, which it writes itself on a signal. Takes some
    seconds at most; to be called on a thread without an event loop, so that no loop waits."""
    if engine is None:
        return ["no engine process runs"]
    try:
        found = asyncio.run(stacks_of(engine.process.pid, engine.stacks))
    except (OSError, ValueError) as error:  # it ended meanwhile, and its file is closed
        return [f"not readable: {type(error).__name__}"]
    head = f"state {found.state or 'unknown'}, stacks by {found.source.value}"
    return [head, *found.lines]


def both_stacks(engine: EngineProcess | None) -> str:
    """One text of both."""
    gateway = gateway_stacks()
    return "\n".join(["gateway", *gateway, "", "engine", *engine_stacks(engine), ""])
