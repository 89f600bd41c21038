"""A gateway process' end of the socket to the main process: commands come in, questions go out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping

import msgspec

from service.gateway.processes import messages
from service.gateway.processes.facts_out import FactsOut
from service.gateway.server_state import Drain, Health, LiveRequest
from service.process.link import Link, LinkClosed
from telemetry.facts.records import RequestEnded
from telemetry.requests.timings import RequestTimings

_CLAIM_S = 0.25
_TIMINGS_S = 1.0

Question = messages.Claim | messages.AskTimings
Answer = messages.Claimed | messages.TimingsAre


class MainLink:
    """Runs on the event loop. `stop` is set when the main process says so, or has ended.

    `handlers` are the live requests, `health` and `drain` what the routes look at.
    """

    def __init__(
        self,
        link: Link,
        out: FactsOut,
        handlers: Mapping[str, LiveRequest],
        health: Health,
        drain: Drain,
        give_up: Callable[[int], None],
    ) -> None:
        """`give_up` is told the process id of the last engine that was given up, again and
        again."""
        self.stop = asyncio.Event()
        self.retry_after_s = 1
        self._link = link
        self._out = out
        self._handlers = handlers
        self._health = health
        self._drain = drain
        self._give_up = give_up
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._claims: dict[int, str] = {}  # of those that have no answer yet
        self._loop = asyncio.get_running_loop()

    def start(self, early: Iterable[bytes] = ()) -> None:
        """`early` are messages that came with the first one."""
        for payload in early:
            self._handle(messages.to_process_decoder.decode(payload))
        self._loop.add_reader(self._link.fileno(), self._on_readable)

    async def claim(self, request_id: str) -> bool:
        """Whether a request may have the id that its client sent; False also when the main process
        does not answer."""
        number = next(self._numbers)
        self._claims[number] = request_id
        answer = await self._ask(messages.Claim(number, request_id), _CLAIM_S)
        if answer is not None:
            del self._claims[number]
        return isinstance(answer, messages.Claimed) and answer.granted

    def release(self, request_id: str) -> None:
        """The request that had claimed the id has ended; its facts come first."""
        self._out.flush()
        self._out.send(messages.Release(request_id))

    def timings(self, ended: RequestEnded) -> RequestTimings | None:
        """The timings of a live request if it ended with `ended`; for another thread than the
        loop's. None if the main process does not know them, or does not answer."""
        answer = asyncio.run_coroutine_threadsafe(self._timings(ended), self._loop).result()
        if not isinstance(answer, messages.TimingsAre) or answer.timings is None:
            return None
        return msgspec.msgpack.decode(answer.timings, type=RequestTimings)

    async def _timings(self, ended: RequestEnded) -> Answer | None:
        self._out.flush(even_empty=True)  # says which frames of the engine were read by now
        return await self._ask(messages.AskTimings(next(self._numbers), ended), _TIMINGS_S)

    async def _ask(self, question: Question, patience_s: float) -> Answer | None:
        """The answer, None when it does not come in time."""
        number = question.number
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._asked[number] = answer
        self._out.send(question)
        try:
            async with asyncio.timeout(patience_s):
                return await answer
        except TimeoutError:  # it may have come at the last moment
            return None if answer.cancelled() else answer.result()
        finally:
            del self._asked[number]

    def _take(self, answer: Answer) -> None:
        """Give an answer to who waits for it; an id that is granted when nobody does is released,
        or no request would ever get it again."""
        asked = self._asked.get(answer.number)
        if asked is not None and not asked.done():
            asked.set_result(answer)
            return
        late = self._claims.pop(answer.number, None)
        if late is not None and isinstance(answer, messages.Claimed) and answer.granted:
            self._out.send(messages.Release(late))

    def _on_readable(self) -> None:
        try:
            for payload in self._link.receive():
                self._handle(messages.to_process_decoder.decode(payload))
        except LinkClosed:
            self._loop.remove_reader(self._link.fileno())
            self.stop.set()

    def _handle(self, message: messages.ToGatewayProcess) -> None:
        match message:
            case messages.EngineHealthIs():
                self._health.hung_ns = message.hung_ns
                self._health.heartbeat_age_ns = message.heartbeat_age_ns
                self._health.hangs = message.hangs
                self.retry_after_s = message.retry_after_s
                self._give_up(message.given_up_pid)
            case messages.Interrupt():
                live = self._handlers.get(message.request_id)
                if live is not None:
                    live.interrupt(message.reason)
            case messages.Claimed() | messages.TimingsAre():
                self._take(message)
            case messages.Sync():
                self._out.flush()
                self._out.send(messages.Synced(message.number))
            case messages.Drain():
                self._drain.active = True
            case messages.StopGateway():
                self.stop.set()
            case messages.LaunchGateway():
                raise ValueError("a second LaunchGateway")
