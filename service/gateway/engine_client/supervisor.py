"""Keeps one engine process alive behind the bridge.

An engine that never became ready because of its configuration is not tried again: the
service ends with the engine's one line. One that dies later is replaced, with a growing
pause while it keeps dying, and the gateway goes on answering meanwhile. One that is hung for
longer than the deadline is ended (`engine_watch`), and replaced like one that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from service.config.settings import EngineConfig
from service.gateway.engine_client.bridge import Bridge
from service.gateway.engine_client.engine_process import EngineProcess, start_engine
from service.gateway.engine_client.engine_watch import EngineWatch
from service.process import frames
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import StepFailure
from telemetry.facts.recorder import Lane
from telemetry.facts.records import EngineDied

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
        clock: Clock,
        lane: Lane,
        first: EngineProcess | None = None,
        deadline_s: float = 0.0,
    ) -> None:
        """`first` is an engine that has been started already. One that gives no sign of life for
        `deadline_s` is ended; 0: none is."""
        self._bridge = bridge
        self._config = config
        self._clock = clock
        self._lane = lane
        self._engine = first
        self._deadline_s = deadline_s
        self._verdict: str | None = None
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
        engine = self._engine
        if engine is not None and engine.process.returncode is None:
            self._bridge.request_shutdown()
            await engine.wait(_STOP_GRACE_S)

    async def _run_one(self) -> int | None:
        """The exit code of one engine; None when it could not be started, for `_verdict`."""
        try:
            engine = self._engine = self._engine or start_engine(self._clock)
        except OSError as error:
            self._verdict = f"cannot start the engine process: {error}"
            return None
        watch = EngineWatch(self._bridge, engine, self._clock, self._lane, self._deadline_s)
        watching = asyncio.create_task(watch.run(), name="engine watch")
        try:
            await self._bridge.attach(engine.connection, self._config, engine.begun_ns)
        finally:
            watching.cancel()
            self._verdict = watch.verdict
            engine.connection.close()
            # the socket is closed: a process that lingers is of no use to anybody
            code = await engine.wait(_STOP_GRACE_S)
            engine.close()
            self._engine = None
        return code

    def _record_death(self, code: int | None) -> None:
        self._lane.append(
            EngineDied(
                at_ns=self._clock.now_ns(),
                exit_code=code,
                detail=self._detail(code),
                restart=self.restarts,
                failure=self._failure(code),
            )
        )

    def _failure(self, code: int | None) -> StepFailure | None:
        """What the engine said of its device, in words or by its exit code."""
        if self._bridge.failure is not None:
            return self._bridge.failure.failure
        return StepFailure.RANK_LOST if code == frames.EXIT_RANK_LOST else None

    def _is_hopeless(self) -> bool:
        failure = self._bridge.failure
        return failure is not None and failure.is_config

    def _detail(self, code: int | None) -> str:
        if self._verdict is not None or code is None:
            return self._verdict or "was not started"
        if self._bridge.failure is not None:
            return self._bridge.failure.message
        if code < 0:
            return f"ended by signal {-code}"
        if code == frames.EXIT_RANK_LOST:
            return "a rank of the model was lost"
        return f"exited with code {code}"
