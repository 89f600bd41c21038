"""Records which requests are live, so that folds can find requests whose end was lost.

A list is written when the last live request has ended, once a minute while requests are live, and
after the gateway's lane has lost facts; at most one a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from telemetry.facts.clock import Clock
from telemetry.facts.recorder import Lane
from telemetry.facts.records import RequestsListed

EVERY_NS = 60_000_000_000
_TICK_S = 1.0


class RequestLister:
    """Writes RequestsListed facts; runs on the event loop.

    `live` must hold a request's id from before its first fact until after its last. With several
    gateway processes it holds those that are known here: `settle` waits for what the processes
    know, and returns the ids of requests that ended meanwhile, or None if it was in vain. The list
    is of the moment before.
    """

    def __init__(
        self,
        live: Collection[str],
        lane: Lane,
        clock: Clock,
        settle: Callable[[], Awaitable[Collection[str] | None]] | None = None,
    ) -> None:
        self._live = live
        self._settle = settle
        self._lane = lane
        self._clock = clock
        self._written_before = lane.written
        self._lost_before = 0
        self._next_ns = clock.now_ns() + EVERY_NS

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_ns = self._clock.now_ns()
            ended = () if self._settle is None else await self._settle()
            if ended is not None:
                self.tick(now_ns, ended)

    def tick(self, now_ns: int | None = None, ended: Collection[str] = ()) -> None:
        """Write the list of a moment, by default now, if one is due; `ended` are live requests of
        then that have ended since. If the lane has no room for it, it stays due."""
        now_ns, is_busy = self._clock.now_ns() if now_ns is None else now_ns, bool(self._live)
        went_idle = not is_busy and self._lane.written != self._written_before
        is_minute = is_busy and now_ns >= self._next_ns
        lost = self._lane.lost
        if went_idle or is_minute or lost != self._lost_before:
            self._lane.append(RequestsListed(now_ns, (*self._live, *ended)))
            if self._lane.lost != lost:
                return
            self._lost_before, self._next_ns = lost, now_ns + EVERY_NS
            self._written_before = self._lane.written
