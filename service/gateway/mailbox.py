"""Where the emissions for one HTTP request arrive; all of its choices share it."""

from __future__ import annotations

import asyncio

from service.engine.plan import Emission
from telemetry.records import EndReason


class Interrupted(Exception):
    """Nobody wants the rest any more; `reason` says why."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Mailbox:
    """An unbounded queue for one reader on the event loop; `put` is called on it too.

    Unbounded because a sequence's own `max_tokens` bounds what can be in it.
    """

    def __init__(self) -> None:
        self._emissions: list[Emission] = []
        self._interruption: EndReason | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, emission: Emission) -> None:
        self._emissions.append(emission)
        self._wake()

    def interrupt(self, reason: EndReason) -> None:
        """Make `take` raise Interrupted, now and from now on."""
        self._interruption = reason
        self._wake()

    async def take(self) -> list[Emission]:
        """Everything that has arrived; waits until that is something. Raises Interrupted."""
        while not self._emissions and self._interruption is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._interruption is not None:
            raise Interrupted(self._interruption)
        taken, self._emissions = self._emissions, []
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
