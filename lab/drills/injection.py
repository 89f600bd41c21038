"""How a running server gets a fault: by processes beside it, by orders to hooks, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.drills.collector import Collector
from lab.drills.outside import Helper, Hooks, InjectionFailed, Nice
from lab.drills.servers import Cores, DrillServer, call
from lab.drills.traffic import Scene

_FLUSH = "/debug/cache/flush"


@dataclass(frozen=True, slots=True)
class InjectionTarget:
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
    """Acts on a running server. This one does nothing: the traffic is the fault. All that acts may
    raise OSError, InjectionFailed included: then there is no episode."""

    async def arm(self, target: InjectionTarget) -> None:
        """Called before the traffic begins: does what takes time."""

    async def begin(self, target: InjectionTarget) -> None:
        """Switch the fault on; it is on when this returns."""

    async def end(self, target: InjectionTarget) -> None:
        """Switch the fault off; it is off when this returns. Also called where it was never on."""

    @property
    def failures(self) -> list[str]:
        """After the end: why the fault was not what it should have been; empty where it was."""
        return []

    @property
    def nices(self) -> list[Nice]:
        """After the end: priorities of helpers."""
        return []


class HelperInjection(Injection):
    """Helper processes beside the server, made by `make` once the server runs."""

    def __init__(self, make: Callable[[InjectionTarget], list[Helper]]) -> None:
        self._make = make
        self._helpers: list[Helper] = []

    async def arm(self, target: InjectionTarget) -> None:
        self._helpers = self._make(target)
        for helper in self._helpers:
            helper.start()

    async def begin(self, target: InjectionTarget) -> None:
        for helper in self._helpers:
            helper.go()

    async def end(self, target: InjectionTarget) -> None:
        for helper in self._helpers:
            await helper.end()

    @property
    def failures(self) -> list[str]:
        return [helper.failure for helper in self._helpers if helper.failure is not None]

    @property
    def nices(self) -> list[Nice]:
        return [helper.nice for helper in self._helpers if helper.nice is not None]


class HookInjection(Injection):
    """An order to the hooks of the engine or the gateway; `first` is one to send beforehand."""

    def __init__(
        self, process: str, what: str, first: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self._process, self._what, self._first, self._more = process, what, first, more
        self._is_on = False
        self._not_ended: list[str] = []

    def _pid(self, target: InjectionTarget) -> int:
        return target.server.engine_pid if self._process == "engine" else target.server.pid

    async def arm(self, target: InjectionTarget) -> None:
        if self._first is not None:
            await target.hooks.send(self._pid(target), **self._first)

    async def begin(self, target: InjectionTarget) -> None:
        await target.hooks.send(self._pid(target), self._what, **self._more)
        self._is_on = True

    async def end(self, target: InjectionTarget) -> None:
        if self._is_on:
            self._is_on = False
            try:
                await target.hooks.send(self._pid(target), self._what, off=True)
            except ProcessLookupError:
                pass  # an engine that was replaced
            except TimeoutError as error:
                self._not_ended.append(f"at its end: {error}")

    @property
    def failures(self) -> list[str]:
        return self._not_ended


class CacheFlushing(Injection):
    """The prefix cache is flushed `per_s` times a second. A server that refuses ends the drill; one
    that does not answer is asked again, and the episode does not count."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._task: asyncio.Task[None] | None = None
        self._unanswered: list[str] = []

    async def begin(self, target: InjectionTarget) -> None:
        port = target.server.port
        await self._flush(port)
        self._task = asyncio.create_task(self._flush_again_and_again(port))

    async def end(self, target: InjectionTarget) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):  # not that it was cancelled
            raise ended

    @property
    def failures(self) -> list[str]:
        count = len(self._unanswered)
        return [f"{count} flushes failed: {self._unanswered[0]}"] if count else []

    async def _flush_again_and_again(self, port: int) -> None:
        while True:
            await asyncio.sleep(1 / self._per_s)
            try:
                await self._flush(port)
            except InjectionFailed:
                raise
            except OSError as error:
                self._unanswered.append(str(error) or type(error).__name__)

    async def _flush(self, port: int) -> None:
        status, _ = await call(port, "POST", _FLUSH)
        if status != 200:
            raise InjectionFailed(f"{_FLUSH}: the server answered {status}")


class EngineStop(Injection):
    """The engine's process is stopped from outside, and continued after `seconds`, or at the end
    of the fault. An engine that was replaced meanwhile is left alone."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pid = 0
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, target: InjectionTarget) -> None:
        self._pid = target.server.engine_pid
        os.kill(self._pid, signal.SIGSTOP)
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._continue)

    async def end(self, target: InjectionTarget) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._continue()

    def _continue(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGCONT)


class CollectorHang(Injection):
    """The collector of spans accepts exports and does not answer."""

    async def begin(self, target: InjectionTarget) -> None:
        assert target.collector is not None
        target.collector.hangs = True

    async def end(self, target: InjectionTarget) -> None:
        assert target.collector is not None
        target.collector.hangs = False
