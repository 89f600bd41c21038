"""Where the emissions for one HTTP request arrive; all of its choices share it.

A request that keeps up takes no turn of the event loop for its tokens: they are handed to
it while the engine's frame is read (`flow`, `hand_over`). A task waits in `take` only for
what such a request cannot have at once: its first token, a backlog, its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.engine.plan import Emission
from service.gateway.errors import Interrupted
from telemetry.facts.engine_records import GrammarCompiled, SequenceAdmitted, SequenceQueued
from telemetry.facts.reasons import EndReason

_PART = 16


def ignore(state: bool) -> None:
    """The callback of a request that has ended."""


class Mailbox:
    """A queue for one reader on the event loop; `put` is called on it too.

    When more than `limit` emissions lie unread `on_full(True)` is called, and `on_full(False)`
    when they have been taken: whoever fills the box is expected to stop meanwhile. What is on
    its way still fits, and a sequence's own `max_tokens` bounds that.
    """

    def __init__(self, limit: int, on_full: Callable[[bool], None]) -> None:
        self.hit_tokens: dict[int, int] = {}
        self._taken: set[int] = set()
        self.limit = limit
        self._on_full = on_full
        self._full = False
        self._emissions: list[Emission] = []
        self._interruption: EndReason | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._consume: Callable[[list[Emission]], bool] | None = None

    def put(self, emission: Emission) -> None:
        self._emissions.append(emission)
        self._taken.add(emission.seq_id)
        if len(self._emissions) > self.limit and not self._full:
            self._full = True
            self._on_full(True)
        if self._consume is None:
            self._wake()

    def hand_over(self) -> bool:
        """Give what has arrived to whoever flows; whether anybody took it."""
        if self._consume is None or not self._emissions:
            return False
        emissions, self._emissions = self._emissions, []
        self._note_read()
        try:
            goes_on = self._consume(emissions)
        except Exception as error:
            self.fail(error)
        else:
            if not goes_on:
                self.stop_flow()
        return True

    def close(self) -> None:
        """The reader has ended: drop its callback. Reader and mailbox would be a reference cycle
        otherwise, which only the garbage collector frees."""
        self._on_full = ignore

    def fail(self, error: Exception) -> None:
        """Make `flow` raise: what was to be done with the emissions went wrong."""
        self._consume = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    async def flow(self, consume: Callable[[list[Emission]], bool]) -> None:
        """Have each `hand_over` call `consume` until it returns false, `stop_flow` is called,
        or the request is interrupted. Returns at once when there is a backlog. Raises what
        `consume` raises, and Interrupted."""
        if self._emissions and self._interruption is None:
            return
        if self._interruption is None:
            self._consume = consume
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = self._consume = None
        if self._interruption is not None:
            raise Interrupted(self._interruption)

    def stop_flow(self) -> None:
        """From now on emissions wait for `take`."""
        self._consume = None
        self._wake()

    @property
    def is_empty(self) -> bool:
        return not self._emissions

    def noted(self, fact: SequenceQueued | GrammarCompiled | SequenceAdmitted) -> None:
        """Note that the engine has taken a sequence, and at its first admission how much of its
        prompt it need not compute. A constraint can still be refused until it is compiled."""
        match fact:
            case SequenceQueued():
                is_taken = not fact.constrained
            case GrammarCompiled():
                is_taken = not fact.refused
            case SequenceAdmitted():
                is_taken = True
                self.hit_tokens.setdefault(fact.seq_id, fact.hit_tokens)
        if is_taken and fact.seq_id not in self._taken:
            self._taken.add(fact.seq_id)
            if self._consume is None:
                self._wake()

    async def taken(self, sequences: int) -> bool:
        """Wait until so many sequences cannot be refused any more, or there is something to
        `take`, which may be a refusal; whether all have been taken. Raises Interrupted."""
        while len(self._taken) < sequences and not self._emissions:
            await self._wait()
        self._raise_interruption()
        return not self._emissions

    async def news(self, within_s: float | None) -> bool:
        """Wait for anything to `take`, for that long; whether there is. Raises Interrupted."""
        loop = asyncio.get_running_loop()
        alarm = None if within_s is None else loop.call_later(within_s, self._wake)
        try:
            if not self._emissions:
                await self._wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        self._raise_interruption()
        return bool(self._emissions)

    def interrupt(self, reason: EndReason) -> None:
        """Make `take` raise Interrupted, now and from now on."""
        if self._interruption is None:
            self._interruption = reason
        self.stop_flow()

    @property
    def interruption(self) -> EndReason | None:
        return self._interruption

    async def take(self) -> list[Emission]:
        """The oldest of what has arrived; waits until that is something. Raises Interrupted.

        A backlog is handed out in parts, with a turn for everybody else between them: to make
        text of it all at once would hold up every other stream.
        """
        while not self._emissions and self._interruption is None:
            await self._wait()
        self._raise_interruption()
        taken, self._emissions = self._emissions[:_PART], self._emissions[_PART:]
        self._note_read()
        if self._emissions:
            await asyncio.sleep(0)
        return taken

    async def _wait(self) -> None:
        """Until somebody wakes this reader; not at all once it is interrupted."""
        self._raise_interruption()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _raise_interruption(self) -> None:
        if self._interruption is not None:
            raise Interrupted(self._interruption)

    def _note_read(self) -> None:
        if self._full and len(self._emissions) <= self.limit // 2:
            self._full = False
            self._on_full(False)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
