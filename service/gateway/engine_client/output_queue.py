"""The queue between the engine client and one request: emissions of all its choices.

A request that keeps up needs no task switch for its tokens: `push_to` registers a consumer, and
`flush` calls it while the engine's frame is read. The request's task waits in `wait_output` and
`get` for its first token and for a backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.engine.plan import Emission
from service.gateway.errors import Interrupted
from telemetry.facts.engine_records import GrammarCompiled, SequenceAdmitted, SequenceQueued
from telemetry.facts.reasons import EndReason

_MAX_PER_GET = 16  # emissions


def ignore(state: bool) -> None:
    """The callback of a request that has ended."""


class OutputQueue:
    """A queue with one reader; reader and writer run on the event loop.

    `on_full(True)` is called when more than `limit` emissions are unread, and `on_full(False)`
    when half of them have been read: the writer should pause in between. `put` still accepts
    emissions meanwhile; a sequence's own `max_tokens` bounds how many.

    `hit_tokens` has, by sequence, how many tokens of the prompt were in the prefix cache.
    """

    def __init__(self, limit: int, on_full: Callable[[bool], None]) -> None:
        self.hit_tokens: dict[int, int] = {}
        self._accepted: set[int] = set()
        self.limit = limit
        self._on_full = on_full
        self._full = False
        self._emissions: list[Emission] = []
        self._interruption: EndReason | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._consume: Callable[[list[Emission]], bool] | None = None

    def put(self, emission: Emission) -> None:
        self._emissions.append(emission)
        self._accepted.add(emission.seq_id)
        if len(self._emissions) > self.limit and not self._full:
            self._full = True
            self._on_full(True)
        if self._consume is None:
            self._wake()

    def flush(self) -> bool:
        """Call the consumer with all unread emissions. False if there are none, or no consumer."""
        if self._consume is None or not self._emissions:
            return False
        emissions, self._emissions = self._emissions, []
        self._check_drained()
        try:
            goes_on = self._consume(emissions)
        except Exception as error:
            self.fail(error)
        else:
            if not goes_on:
                self.stop_pushing()
        return True

    def close(self) -> None:
        """The reader has ended: drop its callback. Reader and queue would be a reference cycle
        otherwise, which only the garbage collector frees."""
        self._on_full = ignore

    def fail(self, error: Exception) -> None:
        """Make `push_to` raise `error`, which the consumer raised."""
        self._consume = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    async def push_to(self, consume: Callable[[list[Emission]], bool]) -> None:
        """Let each `flush` call `consume`, until it returns False, `stop_pushing` is called or the
        request is interrupted.

        Returns at once when there is a backlog. Raises what `consume` raises, and Interrupted.
        """
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

    def stop_pushing(self) -> None:
        """End `push_to`: emissions stay in the queue for `get`."""
        self._consume = None
        self._wake()

    @property
    def is_empty(self) -> bool:
        return not self._emissions

    def on_sequence_fact(self, fact: SequenceQueued | GrammarCompiled | SequenceAdmitted) -> None:
        """Note that the engine has accepted a sequence, and its cached tokens when it is first
        admitted. A sequence with a grammar is accepted once the grammar has been compiled."""
        match fact:
            case SequenceQueued():
                is_accepted = not fact.constrained
            case GrammarCompiled():
                is_accepted = not fact.refused
            case SequenceAdmitted():
                is_accepted = True
                self.hit_tokens.setdefault(fact.seq_id, fact.hit_tokens)
        if is_accepted and fact.seq_id not in self._accepted:
            self._accepted.add(fact.seq_id)
            if self._consume is None:
                self._wake()

    async def wait_accepted(self, sequences: int) -> bool:
        """Wait until the engine has accepted so many sequences, or emissions have arrived, which
        may be a refusal. True if all were accepted. Raises Interrupted."""
        while len(self._accepted) < sequences and not self._emissions:
            await self._wait()
        self._raise_interruption()
        return not self._emissions

    async def wait_output(self, timeout_s: float | None) -> bool:
        """Wait for emissions; False after `timeout_s` without any. Raises Interrupted."""
        loop = asyncio.get_running_loop()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._wake)
        try:
            if not self._emissions:
                await self._wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._raise_interruption()
        return bool(self._emissions)

    def interrupt(self, reason: EndReason) -> None:
        """Make all waiting methods raise Interrupted from now on."""
        if self._interruption is None:
            self._interruption = reason
        self.stop_pushing()

    @property
    def interruption(self) -> EndReason | None:
        return self._interruption

    async def get(self) -> list[Emission]:
        """Wait for emissions and return the oldest, at most 16. Raises Interrupted.

        A backlog comes in parts, and other tasks run in between: to detokenize all of it at once
        would delay every other stream.
        """
        while not self._emissions and self._interruption is None:
            await self._wait()
        self._raise_interruption()
        taken, self._emissions = self._emissions[:_MAX_PER_GET], self._emissions[_MAX_PER_GET:]
        self._check_drained()
        if self._emissions:
            await asyncio.sleep(0)
        return taken

    async def _wait(self) -> None:
        """Wait for `_wake`. Raises Interrupted at once if the request is interrupted."""
        self._raise_interruption()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _raise_interruption(self) -> None:
        if self._interruption is not None:
            raise Interrupted(self._interruption)

    def _check_drained(self) -> None:
        if self._full and len(self._emissions) <= self.limit // 2:
            self._full = False
            self._on_full(False)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
