"""Watches the heartbeat of one engine: while it hangs, new requests are refused; after the
deadline its process is killed.

Requests of a hung engine are kept, because it may continue. A hang is recorded as a fact with the
stacks of the engine's threads. An engine that is still loading is not watched.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.engine_process import KILLED_S, EngineProcess
from service.gateway.engine_client.liveness import POLL_NS, EngineStatus, LivenessProbe
from service.gateway.engine_client.stacks import STOPPED, Stacks, stacks_of
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import HangKind, StackSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import EngineHung, EngineRecovered
from telemetry.journal.watchdog import process_state

log = logging.getLogger("phasescope.supervisor")

_LAST_STACKS_S = 2.0


@dataclass(slots=True)
class _Hang:
    """A hang that has not ended. `stacks_task` collects the stacks, then records the hang."""

    since_ns: int
    is_stuck: bool
    stacks_task: asyncio.Task[None]
    is_recorded: bool = False


class EngineWatch:
    """Polls the heartbeat until the engine ends; `end_detail` says why it was killed, if it was."""

    def __init__(
        self,
        client: EngineClient,
        engine: EngineProcess,
        clock: Clock,
        lane: Lane,
        deadline_s: float,
        killed_s: float = KILLED_S,
    ) -> None:
        """The socket of an engine that was killed is closed on our side after `killed_s`, if it has
        not been closed by then."""
        self.end_detail: str | None = None
        self._client = client
        self._engine = engine
        self._clock = clock
        self._lane = lane
        self._killed_s = killed_s
        self._liveness = LivenessProbe(int(deadline_s * 1e9))
        self._hang: _Hang | None = None

    async def run(self) -> None:
        await self._client.wait_ready()
        try:
            while self.end_detail is None:
                await asyncio.sleep(POLL_NS / 1e9)
                await self._poll()
        except Exception:
            log.exception("this engine is not watched any more")
            self._client.health.hung_ns = None  # a recovery would not be seen
        finally:
            if self._hang is not None:
                self._hang.stacks_task.cancel()

    async def _poll(self) -> None:
        liveness, client = self._liveness, self._client
        now_ns = self._clock.now_ns()
        status = liveness.observe(now_ns, self._engine.heartbeat.read(), client.is_profiling)
        client.health.heartbeat_age_ns = liveness.silent_ns
        match status:
            case EngineStatus.ALIVE:
                if self._hang is not None:
                    await self._recover(self._hang)
            case EngineStatus.SILENT | EngineStatus.STUCK:
                if self._hang is None:
                    self._hang = self._begin(
                        now_ns - liveness.hung_ns, status is EngineStatus.STUCK
                    )
                client.health.hung_ns = liveness.hung_ns
            case EngineStatus.TIMED_OUT:
                await self._end(now_ns)

    def _begin(self, since_ns: int, is_stuck: bool) -> _Hang:
        self._client.health.hangs += 1
        log.warning(
            "the engine %s; new requests are refused",
            "is in one iteration of its loop for too long" if is_stuck else "has no heartbeat",
        )
        return _Hang(since_ns, is_stuck, asyncio.create_task(self._collect_stacks(), name="stacks"))

    async def _collect_stacks(self) -> None:
        stacks = await stacks_of(self._engine.process.pid, self._engine.stacks)
        if self._hang is not None:
            self._record(self._hang, stacks)

    def _record(self, hang: _Hang, stacks: Stacks) -> None:
        if hang.is_recorded:
            return
        hang.is_recorded = True
        kind = HangKind.STUCK if hang.is_stuck else HangKind.SILENT
        self._lane.append(
            EngineHung(
                at_ns=self._clock.now_ns(),
                since_ns=hang.since_ns,
                kind=HangKind.STOPPED if stacks.state in STOPPED else kind,
                sequences=self._client.sequences,
                engine_pid=self._engine.process.pid,
                process_state=stacks.state,
                stacks_source=stacks.source,
                stacks=stacks.lines,
            )
        )

    async def _finish_record(self, hang: _Hang, timeout_s: float) -> None:
        """Record the hang, with the stacks if they come within `timeout_s`."""
        await asyncio.wait({hang.stacks_task}, timeout=timeout_s)
        hang.stacks_task.cancel()
        state = process_state(self._engine.process.pid)
        self._record(hang, Stacks(state, StackSource.NOBODY, ()))

    async def _recover(self, hang: _Hang) -> None:
        self._client.health.hung_ns = None
        await self._finish_record(hang, 0)
        self._hang = None
        self._lane.append(EngineRecovered(self._clock.now_ns(), hang.since_ns))
        log.warning("the engine works again")

    async def _end(self, now_ns: int) -> None:
        """Kill the process: SIGKILL ends a stopped one too. The supervisor does the rest, once the
        socket is closed: it ends this watch then."""
        if self._hang is None:
            self._hang = self._begin(now_ns - self._liveness.hung_ns, self._liveness.stuck_ns > 0)
        hang = self._hang
        await self._finish_record(hang, _LAST_STACKS_S)
        seconds = (self._clock.now_ns() - hang.since_ns) / 1e9
        self.end_detail = f"did not respond for {seconds:.0f} s and was ended"
        self._engine.process.kill()
        await asyncio.sleep(self._killed_s)
        pid = self._engine.process.pid
        log.error("engine process %d was killed and holds its socket; it is given up", pid)
        self._client.health.given_up_pid = pid
        self._client.abort()
