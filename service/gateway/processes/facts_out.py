"""A gateway process' facts on their way to the main process.

Facts are sent before the engine is told of what they say (`flush` is called before a submit is
written), so the main process has them, or knows that it lacks them, when it reads what the engine
did: `SharedCount` is how many facts have been handed to the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.gateway.processes import messages
from service.gateway.processes.shared_count import SharedCount
from service.process.link import Link, LinkClosed
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Gap, Lane
from telemetry.facts.records import Fact
from telemetry.metrics.connections import ConnectionCounts
from telemetry.metrics.ingest_counts import IngestCounts

_BACKLOG_BYTES = 64 * 1024 * 1024


class FactsOut:
    """Sends what is in the lanes; runs on the event loop. `engine` says the pid of the running
    engine and how many of its frames were read."""

    def __init__(
        self,
        link: Link,
        count: SharedCount,
        lanes: tuple[Lane, ...],
        engine: Callable[[], tuple[int, int]],
        connections: ConnectionCounts,
        ingest: IngestCounts,
    ) -> None:
        self._link = link
        self._count = count
        self._lanes = lanes
        self._engine = engine
        self._connections = connections
        self._ingest = ingest
        self._gap = Gap(FactSource.GATEWAY)
        self._handed_over = self._dropped = 0
        self._is_waiting = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the main process has not taken."""
        return self._link.backlog_bytes

    def flush(self, even_empty: bool = False) -> None:
        """Send all facts that there are. Without facts nothing is sent unless `even_empty`."""
        facts = [fact for lane in self._lanes for fact in lane.drain()]
        if not facts and not even_empty:
            return
        pid, frames = self._engine()
        lost = sum(lane.lost for lane in self._lanes) + self._dropped
        taken = self._bounded(facts)
        batch = messages.Facts(taken, lost, pid, frames, self._connections, self._ingest)
        self._handed_over += len(taken)
        self._count.set(self._handed_over)
        self.send(batch)

    def send(self, message: messages.ToMain) -> None:
        """Send a message; what the socket does not take is sent when it does."""
        try:
            self._link.send(messages.packed(message))
        except LinkClosed:
            return  # reading finds that too, and ends the process
        if self._link.has_backlog and not self._is_waiting:
            self._is_waiting = True
            asyncio.get_running_loop().add_writer(self._link.fileno(), self._on_writable)

    async def beat(self) -> None:
        """Send what is new every 20 ms, and a sign of life at least every BEAT_S."""
        silent_s = 0.0
        while True:
            await asyncio.sleep(_PERIOD_S)
            silent_s += _PERIOD_S
            is_due = silent_s >= messages.BEAT_S
            if is_due or any(self._lanes):
                self.flush(even_empty=is_due)
                silent_s = 0.0

    def _bounded(self, facts: list[Fact]) -> list[Fact]:
        """The facts; none while too much waits, and then how many were dropped."""
        if self._link.backlog_bytes > _BACKLOG_BYTES:
            self._gap.add(facts)
            self._dropped += len(facts)
            return []
        return [*self._gap.take(), *facts]

    def _on_writable(self) -> None:
        try:
            self._link.flush()
        except LinkClosed:
            pass
        else:
            if self._link.has_backlog:
                return
        self._is_waiting = False
        asyncio.get_running_loop().remove_writer(self._link.fileno())


_PERIOD_S = 0.02
