"""Watches the heartbeat of one engine: refuses for it while it is hung, and ends it when it has
been for too long.

Requests that a hung engine has are kept, since it may go on. What is found is a fact, with the
stacks of its threads. An engine that loads is not watched: nobody waits for its steps.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from service.gateway.engine_client.bridge import Bridge
from service.gateway.engine_client.engine_process import EngineProcess
from service.gateway.engine_client.liveness import LOOK_NS, Life, Liveness
from service.gateway.engine_client.stacks import STOPPED, Stacks, stacks_of
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import HangKind, StackSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import EngineHung, EngineRecovered
from telemetry.journal.watchdog import process_state

log = logging.getLogger("phasescope.supervisor")

_LAST_LOOK_S = 2.0


@dataclass(slots=True)
class _Hang:
    """One that goes on. `looking` finds out where the threads are, and then tells of it."""

    since_ns: int
    is_stuck: bool
    looking: asyncio.Task[None]
    is_told: bool = False


class EngineWatch:
    """`run` lasts as long as the engine; `verdict` says why it was ended, if it was."""

    def __init__(
        self, bridge: Bridge, engine: EngineProcess, clock: Clock, lane: Lane, deadline_s: float
    ) -> None:
        self.verdict: str | None = None
        self._bridge = bridge
        self._engine = engine
        self._clock = clock
        self._lane = lane
        self._liveness = Liveness(int(deadline_s * 1e9))
        self._hang: _Hang | None = None

    async def run(self) -> None:
        await self._bridge.wait_ready()
        try:
            while self.verdict is None:
                await asyncio.sleep(LOOK_NS / 1e9)
                await self._look()
        except Exception:
            log.exception("this engine is not watched any more")
            self._bridge.health.hung_ns = None  # nobody would find out that it works again
        finally:
            if self._hang is not None:
                self._hang.looking.cancel()

    async def _look(self) -> None:
        liveness, bridge = self._liveness, self._bridge
        now_ns = self._clock.now_ns()
        life = liveness.look(now_ns, self._engine.pulse.read(), bridge.is_profiling)
        bridge.health.heartbeat_age_ns = liveness.silent_ns
        match life:
            case Life.LIVES:
                if self._hang is not None:
                    await self._recover(self._hang)
            case Life.SILENT | Life.STUCK:
                if self._hang is None:
                    self._hang = self._begin(now_ns - liveness.hung_ns, life is Life.STUCK)
                bridge.health.hung_ns = liveness.hung_ns
            case Life.GIVEN_UP:
                await self._give_up(now_ns)

    def _begin(self, since_ns: int, is_stuck: bool) -> _Hang:
        self._bridge.health.hangs += 1
        log.warning(
            "the engine %s; new requests are refused",
            "is in one turn of its loop for too long" if is_stuck else "has no heartbeat",
        )
        return _Hang(since_ns, is_stuck, asyncio.create_task(self._find_out(), name="stacks"))

    async def _find_out(self) -> None:
        stacks = await stacks_of(self._engine.process.pid, self._engine.stacks)
        if self._hang is not None:
            self._tell(self._hang, stacks)

    def _tell(self, hang: _Hang, stacks: Stacks) -> None:
        if hang.is_told:
            return
        hang.is_told = True
        kind = HangKind.STUCK if hang.is_stuck else HangKind.SILENT
        self._lane.append(
            EngineHung(
                at_ns=self._clock.now_ns(),
                since_ns=hang.since_ns,
                kind=HangKind.STOPPED if stacks.state in STOPPED else kind,
                sequences=self._bridge.sequences,
                engine_pid=self._engine.process.pid,
                process_state=stacks.state,
                stacks_source=stacks.source,
                stacks=stacks.lines,
            )
        )

    async def _settle(self, hang: _Hang, within_s: float) -> None:
        """Tell of it, with what has been found out by then."""
        await asyncio.wait({hang.looking}, timeout=within_s)
        hang.looking.cancel()
        state = process_state(self._engine.process.pid)
        self._tell(hang, Stacks(state, StackSource.NOBODY, ()))

    async def _recover(self, hang: _Hang) -> None:
        self._bridge.health.hung_ns = None
        await self._settle(hang, 0)
        self._hang = None
        self._lane.append(EngineRecovered(self._clock.now_ns(), hang.since_ns))
        log.warning("the engine works again")

    async def _give_up(self, now_ns: int) -> None:
        """SIGKILL ends a stopped process, too; all else follows from its end."""
        if self._hang is None:
            self._hang = self._begin(now_ns - self._liveness.hung_ns, self._liveness.stuck_ns > 0)
        hang = self._hang
        await self._settle(hang, _LAST_LOOK_S)
        seconds = (self._clock.now_ns() - hang.since_ns) / 1e9
        self.verdict = f"did not respond for {seconds:.0f} s and was ended"
        self._engine.process.kill()
