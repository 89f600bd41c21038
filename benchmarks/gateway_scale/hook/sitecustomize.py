"""Loaded into the processes of a server from outside; nothing of it is in the product.

Python imports this in every process that has this folder on PYTHONPATH. In the engine it puts
the paced executor in place. In the gateway it gives threads their names in /proc, so that the
CPU time of each can be read there, and beats on the event loop: how late each beat was goes to
`GATEWAY_SCALE_FOLDER/lag`, as three 32-bit numbers a beat: s since the start, us late, and us
of it in which the loop's thread was ready to run and waited for a core (schedstat's run delay).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

_BEAT_S = 0.01
_WRITE_EVERY = 256


class _Beats:
    """A timer on the loop that it watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        self._file = path.open("wb", buffering=0)
        self._begin_s = time.perf_counter()
        self._late = array("I")
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._arm()

    def _run_delay_us(self) -> int:
        return int(os.pread(self._schedstat, 64, 0).split()[1]) // 1000

    def _arm(self) -> None:
        self._delay_us = self._run_delay_us()
        self._due_s = time.perf_counter() + _BEAT_S
        self._loop.call_later(_BEAT_S, self._beat)

    def _beat(self) -> None:
        now_s = time.perf_counter()
        late_us = int(max(0.0, now_s - self._due_s) * 1e6)
        waited_us = min(late_us, self._run_delay_us() - self._delay_us)
        self._late.extend((int(now_s - self._begin_s), late_us, waited_us))
        if len(self._late) >= 3 * _WRITE_EVERY:
            self._file.write(self._late.tobytes())
            del self._late[:]
        self._arm()


def _name_threads() -> None:
    """The kernel keeps 15 characters of a name."""
    told = threading.Thread._set_native_id  # type: ignore[attr-defined]

    def tell(thread: threading.Thread) -> None:
        told(thread)
        name = thread.name.removeprefix("phasescope-")[:15]
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)

    threading.Thread._set_native_id = tell  # type: ignore[attr-defined]


def _watch_loop(folder: Path) -> None:
    import uvicorn

    serve = uvicorn.Server.serve

    async def watched(server: Any, *args: Any, **named: Any) -> None:
        _beats.append(_Beats(asyncio.get_running_loop(), folder / "lag"))
        await serve(server, *args, **named)

    uvicorn.Server.serve = watched  # type: ignore[method-assign]


_beats: list[_Beats] = []
if "GATEWAY_SCALE_FOLDER" in os.environ and "service.cli.main" in sys.orig_argv:
    if "engine-process" in sys.orig_argv:
        from paced_executor import install

        install(
            float(os.environ["GATEWAY_SCALE_PERIOD_S"]), int(os.environ["GATEWAY_SCALE_BLOCKS"])
        )
    elif "serve" in sys.orig_argv:
        _name_threads()
        _watch_loop(Path(os.environ["GATEWAY_SCALE_FOLDER"]))
