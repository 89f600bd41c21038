"""How a running server is harmed: by processes beside it, by orders to hooks, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.drills.collector import Collector
from lab.drills.outside import Helper, Hooks
from lab.drills.servers import Cores, DrillServer, call
from lab.drills.traffic import Scene


@dataclass(frozen=True, slots=True)
class Live:
    """What an injection can act on while an episode runs."""

    server: DrillServer
    hooks: Hooks
    scene: Scene
    cores: Cores
    collector: Collector | None = None

    @property
    def engine_core(self) -> int:
        return min(self.cores.engine, default=-1)

    @property
    def other_core(self) -> int:
        return min(self.cores.rest, default=-1)


class Injection:
    """Acts on a running server. This one does nothing: the traffic is the fault."""

    async def arm(self, live: Live) -> None:
        """Before the traffic begins: whatever takes its time."""

    async def begin(self, live: Live) -> None:
        """The fault is on when this returns."""

    async def end(self, live: Live) -> None:
        """The fault is off when this returns; also called where it never was on."""


class ByHelpers(Injection):
    """Processes beside the server, made by `make` when everything is known."""

    def __init__(self, make: Callable[[Live], list[Helper]]) -> None:
        self._make = make
        self._helpers: list[Helper] = []

    async def arm(self, live: Live) -> None:
        self._helpers = self._make(live)
        for helper in self._helpers:
            helper.start()

    async def begin(self, live: Live) -> None:
        for helper in self._helpers:
            helper.go()

    async def end(self, live: Live) -> None:
        for helper in self._helpers:
            await helper.end()


class ByHook(Injection):
    """An order to the engine's process, or to the gateway's; `first` is one to give before."""

    def __init__(
        self, process: str, what: str, first: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self._process, self._what, self._first, self._more = process, what, first, more
        self._is_on = False

    def _pid(self, live: Live) -> int:
        return live.server.engine_pid if self._process == "engine" else live.server.pid

    async def arm(self, live: Live) -> None:
        if self._first is not None:
            await live.hooks.send(self._pid(live), **self._first)

    async def begin(self, live: Live) -> None:
        await live.hooks.send(self._pid(live), self._what, **self._more)
        self._is_on = True

    async def end(self, live: Live) -> None:
        if self._is_on:
            self._is_on = False
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                await live.hooks.send(self._pid(live), self._what, off=True)


class Flushing(Injection):
    """The prefix cache is told to forget everything, again and again."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._task: asyncio.Task[None] | None = None

    async def begin(self, live: Live) -> None:
        self._task = asyncio.create_task(self._flush(live.server.port))

    async def end(self, live: Live) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _flush(self, port: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                await call(port, "POST", "/debug/cache/flush")
            await asyncio.sleep(1 / self._per_s)


class Stopping(Injection):
    """The engine's process is stopped from outside, and continued after `seconds`, or at the end
    of the fault. One that has been replaced meanwhile is not there any more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pid = 0
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, live: Live) -> None:
        self._pid = live.server.engine_pid
        os.kill(self._pid, signal.SIGSTOP)
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._continue)

    async def end(self, live: Live) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._continue()

    def _continue(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGCONT)


class Hanging(Injection):
    """The receiver of spans takes everything and answers nothing."""

    async def begin(self, live: Live) -> None:
        assert live.collector is not None
        live.collector.hangs = True

    async def end(self, live: Live) -> None:
        assert live.collector is not None
        live.collector.hangs = False
