"""Keeps one engine process alive behind the bridge.

An engine that never became ready because of its configuration is not tried again: the
service ends with the engine's one line. One that dies later is replaced, with a growing
pause while it keeps dying, and the gateway goes on answering meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys

from service.config import EngineConfig
from service.engine.vocabulary import Vocabulary
from service.gateway.bridge import Bridge
from telemetry.clock import Clock
from telemetry.recorder import Lane
from telemetry.records import EngineDied

log = logging.getLogger("phasescope.supervisor")

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_HEALTHY_AFTER_NS = 60 * 1_000_000_000
_STOP_GRACE_S = 2.0


class EngineStartFailed(Exception):
    """The first engine could not start; the message is one line for people."""


class Supervisor:
    """Starts, watches, replaces and stops the engine process."""

    def __init__(
        self,
        bridge: Bridge,
        config: EngineConfig,
        vocabulary: Vocabulary,
        clock: Clock,
        lane: Lane,
    ) -> None:
        self._bridge = bridge
        self._config = config
        self._vocabulary = vocabulary
        self._clock = clock
        self._lane = lane
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self.restarts = 0

    async def run(self) -> None:
        """Until `stop`: one engine after another. Raises EngineStartFailed."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            begun_ns = self._clock.now_ns()
            code = await self._run_one()
            if self._stopping.is_set():
                return
            self._record_death(code)
            if self._bridge.started is None or self._is_hopeless():
                raise EngineStartFailed(self._detail(code))
            if self._clock.now_ns() - begun_ns > _HEALTHY_AFTER_NS:
                pause_s = _FIRST_PAUSE_S
            log.warning("engine died (%s); restarting in %.2g s", self._detail(code), pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            self.restarts += 1

    async def stop(self) -> None:
        """End the engine process: by word, and by signal if it does not listen."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._bridge.request_shutdown()
        try:
            await asyncio.wait_for(process.wait(), _STOP_GRACE_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _run_one(self) -> int:
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "service.cli.main", "engine", "--fd", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # signals to our group are for us: we drain first
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            ours.close()
            raise EngineStartFailed(f"cannot start the engine process: {error}") from error
        finally:
            theirs.close()
        try:
            await self._bridge.attach(ours, self._config, self._vocabulary)
        finally:
            ours.close()
            await self._reap()
        code = self._process.returncode
        assert code is not None
        return code

    async def _reap(self) -> None:
        """The socket is closed; a process that lingers is of no use to anybody."""
        assert self._process is not None
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_GRACE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _record_death(self, code: int) -> None:
        self._lane.append(
            EngineDied(
                at_ns=self._clock.now_ns(),
                exit_code=code,
                detail=self._detail(code),
                restart=self.restarts,
            )
        )

    def _is_hopeless(self) -> bool:
        failure = self._bridge.failure
        return failure is not None and failure.is_config

    def _detail(self, code: int) -> str:
        if self._bridge.failure is not None:
            return self._bridge.failure.message
        if code < 0:
            return f"ended by signal {-code}"
        return f"exited with code {code}"
