"""Keeps one engine process running.

If the first engine cannot start, or the configuration is wrong, the service ends with the engine's
message. An engine that dies later is restarted, with exponential backoff; the gateway answers
meanwhile. An engine that hangs for longer than the deadline is killed (`engine_watch`) and
restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

from service.config.settings import EngineConfig
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.engine_process import KILLED_S, EngineProcess, start_engine
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
    """The engine cannot start; the message is one line."""


class Supervisor:
    """Starts, watches, restarts and stops the engine process."""

    def __init__(
        self,
        client: EngineClient,
        config: EngineConfig,
        clock: Clock,
        lane: Lane,
        first: EngineProcess | None = None,
        deadline_s: float = 0.0,
        listener: socket.socket | None = None,
        stop_grace_s: float = _STOP_GRACE_S,
        killed_s: float = KILLED_S,
    ) -> None:
        """`first` is an engine that has been started already. An engine that hangs for `deadline_s`
        is killed; 0: never. Further gateway processes connect to `listener`. An engine that is to
        end has `stop_grace_s` for it, and `killed_s` once it was killed."""
        self._client = client
        self._config = config
        self._clock = clock
        self._lane = lane
        self._engine = first
        self._deadline_s = deadline_s
        self._listener = listener
        self._stop_grace_s, self._killed_s = stop_grace_s, killed_s
        self._end_detail: str | None = None
        self._stopping = asyncio.Event()
        self.restarts = 0

    @property
    def engine(self) -> EngineProcess | None:
        """The process that runs or starts now; any thread may ask."""
        return self._engine

    async def run(self) -> None:
        """Run one engine after the other until `stop`. Raises EngineStartFailed."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            begun_ns = self._clock.now_ns()
            code = await self._run_one()
            if self._stopping.is_set():
                return
            self._record_death(code)
            if self._client.started is None or self._is_config_error():
                raise EngineStartFailed(self._detail(code))
            if self._clock.now_ns() - begun_ns > _HEALTHY_AFTER_NS:
                pause_s = _FIRST_PAUSE_S
            log.warning("engine died (%s); restarting in %.2g s", self._detail(code), pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            self.restarts += 1

    async def stop(self) -> None:
        """End the engine process: by a Shutdown message, then by SIGKILL; one that does not end by
        that either is left alone."""
        self._stopping.set()
        engine = self._engine
        if engine is not None and engine.process.returncode is None:
            self._client.request_shutdown()
            if await engine.wait(self._stop_grace_s, self._killed_s) is None:
                self._client.abort()

    async def _run_one(self) -> int | None:
        """Run one engine; returns its exit code, or None if it could not be started."""
        try:
            engine = self._engine = self._engine or start_engine(self._clock, self._listener)
        except OSError as error:
            self._end_detail = f"cannot start the engine process: {error}"
            return None
        watch = EngineWatch(
            self._client, engine, self._clock, self._lane, self._deadline_s, self._killed_s
        )
        watching = asyncio.create_task(watch.run(), name="engine watch")
        try:
            await self._client.attach(engine.connection, self._config, engine.begun_ns)
        finally:
            watching.cancel()
            self._end_detail = watch.end_detail
            engine.connection.close()
            # its socket is closed: the process has nothing left to do
            code = await engine.wait(self._stop_grace_s, self._killed_s)
            if code is None:
                log.error("engine process %d was killed and has not ended", engine.process.pid)
                self._end_detail = self._end_detail or "was killed and has not ended"
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
        """The device failure that the engine reported, by message or by exit code."""
        if self._client.failure is not None:
            return self._client.failure.failure
        return StepFailure.RANK_LOST if code == frames.EXIT_RANK_LOST else None

    def _is_config_error(self) -> bool:
        failure = self._client.failure
        return failure is not None and failure.is_config

    def _detail(self, code: int | None) -> str:
        if self._end_detail is not None or code is None:
            return self._end_detail or "was not started"
        if self._client.failure is not None:
            return self._client.failure.message
        if code < 0:
            return f"ended by signal {-code}"
        if code == frames.EXIT_RANK_LOST:
            return "a rank of the model was lost"
        return f"exited with code {code}"
