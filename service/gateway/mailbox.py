"""Where the emissions for one HTTP request arrive; all of its choices share it."""

from __future__ import annotations

import asyncio

from service.engine.plan import Emission


class Mailbox:
    """An unbounded queue for one reader on the event loop; `put` is called on it too.

    Unbounded because a sequence's own `max_tokens` bounds what can be in it.
    """

    def __init__(self) -> None:
        self._emissions: list[Emission] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, emission: Emission) -> None:
        self._emissions.append(emission)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Emission]:
        """Everything that has arrived; waits until that is something."""
        while not self._emissions:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        taken, self._emissions = self._emissions, []
        return taken
