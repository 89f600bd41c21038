"""One engine in virtual time: production scheduler and loop, with events between iterations."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from service.engine.adapters.orders import AdapterDevice
from service.engine.executor import Executor
from service.engine.inbox import Command, Inbox
from service.engine.loop import EngineLoop
from service.engine.plan import Emission
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import ManualClock
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact


def _ignore(emissions: list[Emission]) -> None:
    pass


class VirtualEngine:
    """Iterates while there is work, and advances the clock to the next event when there is none.

    `rest_ns` gives the gap after an iteration; the executor advances `clock` by what a step takes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: ManualClock,
        rest_ns: Callable[[], int],
        depth: int = 1,
        adapters: AdapterDevice | None = None,
    ) -> None:
        self.clock = clock
        self._rest_ns = rest_ns
        self._inbox, self._lane = Inbox(), Lane(1 << 62)
        self._loop = EngineLoop(
            scheduler, executor, self._inbox, self._lane, clock, depth, adapters
        )
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._orders = 0

    def at(self, at_ns: int, event: Callable[[], None]) -> None:
        """Call `event` at `at_ns`, or after the iteration that runs then. Events of one time
        are called in the order in which they were scheduled."""
        self._orders += 1
        heapq.heappush(self._events, (at_ns, self._orders, event))

    def send(self, command: Command) -> None:
        """Put a command into the inbox; the next iteration applies it."""
        self._inbox.put(command)

    def send_at(self, at_ns: int, command: Command) -> None:
        self.at(at_ns, partial(self._inbox.put, command))

    def run(
        self,
        on_emissions: Callable[[list[Emission]], None] = _ignore,
        until_ns: int | None = None,
    ) -> list[Fact]:
        """The engine's facts until no work and no event is left, or the first iteration after
        `until_ns`.

        `on_emissions` is called after each iteration, before the gap.
        """
        facts: list[Fact] = []
        clock = self.clock
        while until_ns is None or clock.now_ns() < until_ns:
            if self.is_due():
                on_emissions(self.turn())
                clock.advance(self._rest_ns())
                facts += self._lane.drain()
                continue
            next_ns = self._next_ns()
            if next_ns is None:
                break
            clock.advance(max(0, next_ns - clock.now_ns()))
        return facts

    def is_due(self) -> bool:
        """Run due events, and say whether an iteration would do anything now."""
        self._deliver()
        return self._has_something()

    @property
    def unread(self) -> int:
        """Commands that the next turn applies."""
        return len(self._inbox)

    def turn(self) -> list[Emission]:
        """One iteration; the clock is at its end afterwards. For whoever has the next event of many
        engines (`lab.fleet`); facts stay in the lane until `take_facts`."""
        return self._loop.step()

    def take_facts(self) -> list[Fact]:
        return self._lane.drain()

    def _deliver(self) -> None:
        """Run due events; one may take time, then those that become due meanwhile run too."""
        while self._events and self._events[0][0] <= self.clock.now_ns():
            heapq.heappop(self._events)[2]()

    def _has_something(self) -> bool:
        wake_ns = self._loop.wake_ns
        due = wake_ns is not None and wake_ns <= self.clock.now_ns()
        return self._loop.has_work or len(self._inbox) > 0 or due

    def _next_ns(self) -> int | None:
        times = [at_ns for at_ns in (self._loop.wake_ns,) if at_ns is not None]
        if self._events:
            times.append(self._events[0][0])
        return min(times, default=None)
