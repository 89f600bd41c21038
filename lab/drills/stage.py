"""A server under traffic: sends requests, polls the diagnosis, and acts at given times."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lab.drills.client import Clients, Sent
from lab.drills.outcome.conditions import Conditions, Reading, between, read
from lab.drills.servers import Cores, DrillServer, Say, pinned_here
from lab.drills.spec import Phase, Phases
from lab.drills.traffic import PlannedRequest
from lab.drills.watch import DiagnosisPoller
from telemetry.facts.clock import Clock

_FINISH_WITHIN_S = 5.0
_PROGRESS_EVERY_S = 5.0
_LEAD_S = 0.3

TimedAction = Callable[[], Awaitable[None]]


@dataclass
class Stage:
    """Traffic whose time 0 is `begin_ns`; `name` is the prefix of the requests' ids."""

    server: DrillServer
    phases: Phases
    cores: Cores
    clock: Clock
    say: Say
    name: str
    begin_ns: int = 0
    clients: Clients = field(init=False)
    poller: DiagnosisPoller = field(init=False)
    _readings: list[tuple[Phase, Reading]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clients = Clients(self.server.port, self.clock, self.name)
        self.poller = DiagnosisPoller(self.server.port, self.clock)

    @property
    def log(self) -> list[Sent]:
        return self.clients.log

    async def play(
        self,
        requests: Sequence[PlannedRequest],
        from_s: float,
        until_s: float,
        actions: Sequence[tuple[float, TimedAction]],
    ) -> None:
        """Send what is due in [from_s, until_s), run each action at its time, and wait some seconds
        for open requests. Those that do not end stay open until `close_clients`."""
        mine = [request for request in requests if from_s <= request.at_s < until_s]
        if from_s < self.phases.reference_at_s:
            await self.take_reading(Phase.WARM_UP)
        self.begin_ns = self.clock.now_ns() + int((_LEAD_S - from_s) * 1e9)
        tasks = [
            asyncio.create_task(self.poller.run()),
            asyncio.create_task(self._report_progress(len(mine))),
            asyncio.create_task(self.clients.send_all(mine, self.begin_ns)),
        ]
        try:
            with _no_collections(), pinned_here(self.cores.rest):
                for at_s, action in actions:
                    await self._until(at_s)
                    await action()
                await self._until(until_s)
                await self.clients.wait(_FINISH_WITHIN_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.poller.poll()

    async def close_clients(self) -> None:
        """Cancel open requests."""
        await self.clients.cancel_open()

    async def take_reading(self, phase: Phase) -> None:
        """Read the machine's counters when a phase begins."""
        pids = (self.server.pid, self.server.engine_pid)
        cores = self.cores.engine | self.cores.rest
        self._readings.append((phase, read(self.clock, pids, cores)))

    def conditions(self) -> dict[str, Conditions]:
        """The machine's conditions in each phase, from its reading to the next."""
        return {
            phase.value: between(first, last, self._late_ms(first, last))
            for (phase, first), (_, last) in pairwise(self._readings)
        }

    def _late_ms(self, first: Reading, last: Reading) -> list[float]:
        return [one.late_ns / 1e6 for one in self.log if first.at_ns <= one.due_ns < last.at_ns]

    def at_ns(self, at_s: float) -> int:
        return self.begin_ns + round(at_s * 1e9)

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, (self.at_ns(at_s) - self.clock.now_ns()) / 1e9))

    async def _report_progress(self, count: int) -> None:
        while True:
            at_s = (self.clock.now_ns() - self.begin_ns) / 1e9
            phase = self.phases.of(at_s) if at_s < self.phases.end_s else Phase.RECOVERY
            self.say(
                f"{max(0.0, at_s):3.0f} s {phase.value}: {len(self.log)} of {count} requests sent, "
                f"{self.clients.unfinished} open"
            )
            await asyncio.sleep(_PROGRESS_EVERY_S)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """No garbage collection in this process: clients would see it as a stall of the server."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
