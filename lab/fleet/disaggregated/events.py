"""One queue of events for all engines of a world, in true time."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Events:
    """`now_ns` is true time, which no engine sees: each has a clock of its own."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.handled = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._orders = 0

    def at(self, at_ns: int, event: Callable[[], None]) -> None:
        """Call `event` at `at_ns`, or now if that is past; those of one time in their order."""
        self._orders += 1
        heapq.heappush(self._queue, (max(at_ns, self.now_ns), self._orders, event))

    def after(self, delay_ns: int, event: Callable[[], None]) -> None:
        self.at(self.now_ns + delay_ns, event)

    def step(self) -> bool:
        """Handle the next event; False if there is none."""
        if not self._queue:
            return False
        self.now_ns, _, event = heapq.heappop(self._queue)
        self.handled += 1
        event()
        return True
