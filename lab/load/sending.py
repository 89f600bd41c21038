"""Builds requests ahead of time and sends them when they are due.

An open loop is safe from coordinated omission: the times at which requests are intended are
fixed before the run, a task waits for each and never for a reply, and latency counts from the
intended time also when the client itself was late (which is a figure of its own).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.load.accounting import Accounting
from lab.load.aggregator import Ended
from lab.load.http import Broken, Pool
from lab.load.result import ErrorKind
from lab.load.server import Ready, clip, generation_request
from lab.load.spec import BenchSpec, Users
from lab.load.stream import Reply
from lab.load.workload.arrivals import Due, Stream, due_times, stream_rng, streams_of
from lab.load.workload.lengths import draw, lengths_rng
from lab.load.workload.prompts import request_body
from telemetry.facts.clock import Clock

_BUILT_AHEAD = 64
_LONGEST_SLEEP_S = 1.0
_PAUSE_AFTER_FAILURE_S = 0.25


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready to be sent."""

    class_index: int
    payload: bytes
    prompt_tokens: int
    output_tokens: int


Jobs = asyncio.Queue[tuple[Due, Job] | None]


class Sender:
    """Sends all requests of one run, on one event loop."""

    def __init__(
        self, spec: BenchSpec, ready: Ready, pool: Pool, clock: Clock, accounting: Accounting
    ) -> None:
        self._spec, self._ready, self._pool, self._clock = spec, ready, pool, clock
        self._accounting = accounting
        self._lengths_rngs = [lengths_rng(spec.seed, i) for i in range(len(spec.classes))]
        self._built_count = [0] * len(spec.classes)
        self._streams = streams_of(spec)
        self._jobs: dict[int, Jobs] = {
            stream.number: asyncio.Queue(_BUILT_AHEAD)
            for stream in self._streams
            if not isinstance(stream.arrivals, Users)
        }
        self._producers: list[asyncio.Task[None]] = []
        self.live: set[Reply] = set()
        self.sends: set[asyncio.Task[Reply]] = set()
        self.begun_ns = 0
        self.clipped = 0

    async def prime(self) -> None:
        """Build the first requests of every open loop. Raises ConfigError for a wrong trace."""
        for stream in self._streams:
            jobs = self._jobs.get(stream.number)
            if jobs is None:
                continue
            producer = asyncio.create_task(self._produce(stream, jobs))
            self._producers.append(producer)
            while not jobs.full() and not producer.done():
                await asyncio.sleep(0.001)
            if producer.done():
                producer.result()

    def start(self) -> list[asyncio.Task[None]]:
        """Start the clock of the run; the tasks that are returned end when all is sent."""
        self.begun_ns = self._clock.now_ns()
        self._accounting.begin(self.begun_ns)
        return [
            asyncio.create_task(loop) for stream in self._streams for loop in self._loops(stream)
        ]

    async def cancel(self) -> None:
        """Cancel all requests in flight."""
        tasks: list[asyncio.Task[Any]] = [*self._producers, *self.sends]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_until(self, due_ns: int) -> bool:
        """Wait until `due_ns`; False if the run is over before that."""
        while not self._accounting.interrupted:
            end_ns = self._accounting.window.end_ns
            if end_ns is not None and due_ns >= end_ns:
                return False
            left_s = (due_ns - self._clock.now_ns()) / 1e9
            if left_s <= 0:
                return True
            await asyncio.sleep(min(left_s, _LONGEST_SLEEP_S))
        return False

    async def _produce(self, stream: Stream, jobs: Jobs) -> None:
        """Build requests before they are due, so that building makes none of them late."""
        end_ns = _known_end_ns(self._spec)
        for due in due_times(stream, self._spec):
            if end_ns is not None and due.offset_ns >= end_ns:
                break  # a long prompt takes long to build, so none for nothing
            if not self._accounting.is_class_done(due.class_index):
                await jobs.put((due, await self._build(due.class_index, due.lengths)))
            elif self._accounting.all_sent(stream.classes):
                break
        await jobs.put(None)

    def _loops(self, stream: Stream) -> Iterator[Coroutine[Any, Any, None]]:
        if isinstance(stream.arrivals, Users):
            rng = stream_rng(self._spec.seed, stream)
            pause_ns = round(stream.arrivals.pause_s * 1e9)
            for _ in range(stream.arrivals.users):
                yield self._user(stream, rng, pause_ns)
        else:
            yield self._open_loop(stream, self._jobs[stream.number])

    async def _open_loop(self, stream: Stream, jobs: Jobs) -> None:
        """Send each request at its time, whether earlier ones are done or not. One that was
        intended in the window is sent even if the window closed while the client was late."""
        while (item := await jobs.get()) is not None:
            due, job = item
            intended_ns = self.begun_ns + due.offset_ns
            if not await self.wait_until(intended_ns) or self._accounting.all_sent(stream.classes):
                return
            if self._accounting.is_class_done(job.class_index):
                continue
            counted = self._accounting.count(job.class_index, intended_ns)
            send = asyncio.create_task(self._send(job, intended_ns, counted, closed_loop=False))
            self.sends.add(send)
            send.add_done_callback(self.sends.discard)

    async def _user(self, stream: Stream, rng: np.random.Generator, pause_ns: int) -> None:
        """One client: sends its next request when its last reply is complete. It pauses after a
        failure, so that a server which refuses does not get a thousand requests a second."""
        accounting = self._accounting
        while not accounting.is_done(stream.classes, self._clock.now_ns()):
            class_index = stream.pick(rng)
            if accounting.is_class_done(class_index):
                continue
            job = await self._build(class_index, None)
            now_ns = self._clock.now_ns()
            if accounting.is_done(stream.classes, now_ns) or accounting.is_class_done(class_index):
                continue
            counted = accounting.count(class_index, now_ns)
            reply = await self._send(job, now_ns, counted, closed_loop=True)
            if reply.error_kind is not None:
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            if pause_ns and not await self.wait_until(self._clock.now_ns() + pause_ns):
                return

    async def _build(self, class_index: int, lengths: tuple[int, int] | None) -> Job:
        """The next request of a class; `lengths` from a trace."""
        wanted = lengths or draw(
            self._spec.classes[class_index].lengths, self._lengths_rngs[class_index]
        )
        prompt_tokens, output_tokens = clip(self._ready, self._spec, *wanted)
        self.clipped += (prompt_tokens, output_tokens) != wanted
        number = self._built_count[class_index]
        self._built_count[class_index] += 1
        maker = self._ready.maker
        if maker.is_slow:
            prompt = await asyncio.to_thread(maker.make, class_index, number, prompt_tokens)
        else:
            prompt = maker.make(class_index, number, prompt_tokens)
        body = request_body(self._spec, self._ready.model, prompt, output_tokens)
        headers = self._spec.classes[class_index].headers
        payload = generation_request(self._spec, self._pool, body, headers)
        return Job(class_index, payload, prompt_tokens, output_tokens)

    async def _send(self, job: Job, intended_ns: int, counted: bool, closed_loop: bool) -> Reply:
        reply = Reply(intended_ns, self._clock.now_ns())
        self.live.add(reply)
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                await self._pool.exchange(job.payload, reply)
            reply.finish()
        except Broken as broken:
            if not reply.done:  # a server of HTTP/1.0 ends its reply by closing
                reply.fail(broken.kind, str(broken))
            reply.finish()
        except TimeoutError:
            reply.fail(ErrorKind.TIMEOUT, f"no whole reply within {self._spec.timeout_s:g} s")
        except asyncio.CancelledError:
            reply.fail(ErrorKind.UNFINISHED, "the bench ended before the reply")
            raise
        finally:
            self.live.discard(reply)
            reply.end_ns = reply.end_ns or self._clock.now_ns()
            counted = counted and not self._accounting.is_interrupted(reply)
            ended = Ended(reply, job.prompt_tokens, job.output_tokens, counted, closed_loop)
            self._accounting.account(job.class_index, ended)
        return reply


def _known_end_ns(spec: BenchSpec) -> int | None:
    """When the window closes, from the start of the run; None if requests decide it."""
    if spec.duration_s is None or spec.warmup_requests:
        return None
    return round((spec.warmup_s + spec.duration_s) * 1e9)
