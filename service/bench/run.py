"""One run: arrivals in, replies out, figures at the end.

An open loop is safe from coordinated omission: the moments at which requests are intended are
fixed before the run, a task waits for each and never for a reply, and latency is counted from
the intended moment also when the client itself was late (which is a figure of its own).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from service.bench.arrivals import Due, Stream, due_times, stream_rng, streams_of
from service.bench.http import Broken, Pool, parse_url
from service.bench.lengths import draw, lengths_rng
from service.bench.machine import this_machine
from service.bench.parse import arrivals_text, lengths_text
from service.bench.prompts import request_body
from service.bench.result import BenchResult, ClassResult, ErrorKind, Progress
from service.bench.server import Ready, clip, generation_request, prepare
from service.bench.spec import BenchSpec, Slo, Trace, Users, validate
from service.bench.stream import Reply
from service.bench.tally import Ended, Tally, Window
from telemetry.clock import Clock, MonotonicClock, unix_seconds

_AHEAD = 64
_PROGRESS_S = 2.0
_LONGEST_SLEEP_S = 1.0
_PAUSE_AFTER_FAILURE_S = 0.25

OnProgress = Callable[[Progress], None]


def run_bench(
    spec: BenchSpec, on_progress: OnProgress | None = None, clock: Clock | None = None
) -> BenchResult:
    """Run to the end, or to the first SIGINT, and say what was measured.

    Raises ConfigError for a spec that cannot be run and BenchError when the server cannot be
    measured at all; requests that fail are part of the result.
    """
    validate(spec)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(bench(spec, on_progress, clock or MonotonicClock()))


async def bench(spec: BenchSpec, on_progress: OnProgress | None, clock: Clock) -> BenchResult:
    """`run_bench` inside a running loop; `spec` is valid."""
    pool = Pool(parse_url(spec.url), clock)
    try:
        ready = await prepare(spec, pool, clock)
        run = _Run(spec, ready, pool, clock)
        await run.go(on_progress)
        return run.result()
    finally:
        pool.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one: it costs the cores that the server needs about half."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@dataclass(frozen=True, slots=True)
class _Job:
    """A request, ready to be sent."""

    class_index: int
    payload: bytes
    prompt_tokens: int
    output_tokens: int


class _Run:
    """The state of one run; everything happens on one event loop."""

    def __init__(self, spec: BenchSpec, ready: Ready, pool: Pool, clock: Clock) -> None:
        self._spec, self._ready, self._pool, self._clock = spec, ready, pool, clock
        self._window = Window()
        self._tallies = [Tally(self._window) for _ in spec.classes]
        self._total = Tally(self._window)
        self._lengths_rngs = [lengths_rng(spec.seed, i) for i in range(len(spec.classes))]
        self._made = [0] * len(spec.classes)
        self._counted = [0] * len(spec.classes)
        self._live: set[Reply] = set()
        self._tasks: set[asyncio.Task[Reply]] = set()
        self._stopped = asyncio.Event()
        self._began_unix_s = unix_seconds()
        self._begun_ns = self._sent = self._ok = self._failed = self._tokens = 0
        self._warmup_sent = self._warmup_errors = self._clipped = 0
        self._first_open_ns = self._last_open_ns = self._last_end_ns = 0

    async def go(self, on_progress: OnProgress | None) -> None:
        """Send everything, wait for the replies, close the window."""
        streams = streams_of(self._spec)
        queues = {
            stream.number: asyncio.Queue[tuple[Due, _Job] | None](_AHEAD)
            for stream in streams
            if not isinstance(stream.arrivals, Users)
        }
        with _interrupts(self._stopped):
            producers = [
                asyncio.create_task(self._produce(stream, queues[stream.number]))
                for stream in streams
                if stream.number in queues
            ]
            await _primed(producers, list(queues.values()))
            self._begun_ns = self._clock.now_ns()
            if not self._spec.warmup_requests:
                self._open_window(self._begun_ns + round(self._spec.warmup_s * 1e9))
            teller = asyncio.create_task(self._tell(on_progress))
            senders = [
                asyncio.create_task(sender)
                for stream in streams
                for sender in self._senders(stream, queues.get(stream.number))
            ]
            try:
                await self._until_sent(senders)
                await self._drain(senders)
            finally:
                await _cancel([teller, *producers, *senders, *self._tasks])
        self._close_window()

    def result(self) -> BenchResult:
        spec, ready = self._spec, self._ready
        shown = msgspec.structs.replace(
            spec, api_key=None, headers=dict.fromkeys(spec.headers, "(not shown)")
        )
        classes = [self._class_result(index) for index in range(len(spec.classes))]
        total = classes[0] if len(classes) == 1 else self._total_result()
        return BenchResult(
            partial=self._stopped.is_set(),
            began_unix_s=self._began_unix_s,
            window_s=self._window.seconds,
            warmup_requests=self._warmup_sent,
            warmup_errors=self._warmup_errors,
            clipped=self._clipped,
            connections=self._pool.opened,
            salt=ready.salt,
            token_ids=ready.token_ids,
            total=msgspec.structs.replace(total, name="total"),
            classes=tuple(classes),
            server=ready.server,
            machine=this_machine(),
            spec=msgspec.to_builtins(shown),
        )

    # sending

    async def _produce(self, stream: Stream, queue: asyncio.Queue[tuple[Due, _Job] | None]) -> None:
        """Build requests ahead of their moments, so that building makes none of them late."""
        for due in due_times(stream, self._spec):
            if not self._class_over(due.class_index):
                await queue.put((due, await self._build(due.class_index, due.lengths)))
            elif self._over(stream):
                break
        await queue.put(None)

    def _senders(
        self, stream: Stream, queue: asyncio.Queue[tuple[Due, _Job] | None] | None
    ) -> Iterator[Coroutine[Any, Any, None]]:
        if queue is not None:
            yield self._open_loop(stream, queue)
        elif isinstance(stream.arrivals, Users):
            rng = stream_rng(self._spec.seed, stream)
            for _ in range(stream.arrivals.users):
                yield self._user(stream, rng)

    async def _open_loop(
        self, stream: Stream, queue: asyncio.Queue[tuple[Due, _Job] | None]
    ) -> None:
        """Each request at its moment, whatever became of the earlier ones."""
        while (item := await queue.get()) is not None:
            due, job = item
            intended_ns = self._begun_ns + due.offset_ns
            if not await self._reaches(intended_ns) or self._over(stream):
                return
            if self._class_over(job.class_index):
                continue
            counted = self._count(job.class_index, intended_ns, closed_loop=False)
            task = asyncio.create_task(self._send(job, intended_ns, counted, closed_loop=False))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _user(self, stream: Stream, rng: np.random.Generator) -> None:
        """One client: the next request when the last reply is complete, after a failure a
        little later, so that a server which refuses is not asked a thousand times a second."""
        while not self._over(stream):
            class_index = stream.pick(rng)
            if self._class_over(class_index):
                continue
            job = await self._build(class_index, None)
            if self._over(stream) or self._class_over(class_index):
                continue
            now_ns = self._clock.now_ns()
            counted = self._count(class_index, now_ns, closed_loop=True)
            reply = await self._send(job, now_ns, counted, closed_loop=True)
            if reply.error_kind is not None:
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _build(self, class_index: int, lengths: tuple[int, int] | None) -> _Job:
        drawn = draw(self._spec.classes[class_index].lengths, self._lengths_rngs[class_index])
        asked = drawn if lengths is None else lengths
        prompt_tokens, output_tokens = clip(self._ready, self._spec, *asked)
        self._clipped += (prompt_tokens, output_tokens) != asked
        number = self._made[class_index]
        self._made[class_index] += 1
        maker = self._ready.maker
        if maker.is_slow:
            prompt = await asyncio.to_thread(maker.make, class_index, number, prompt_tokens)
        else:
            prompt = maker.make(class_index, number, prompt_tokens)
        body = request_body(self._spec, self._ready.model, prompt, output_tokens)
        payload = generation_request(self._spec, self._pool, body)
        return _Job(class_index, payload, prompt_tokens, output_tokens)

    async def _send(self, job: _Job, intended_ns: int, counted: bool, closed_loop: bool) -> Reply:
        reply = Reply(intended_ns, self._clock.now_ns())
        self._live.add(reply)
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
            counted = counted and not self._stopped.is_set()
            raise
        finally:
            self._live.discard(reply)
            self._account(job, reply, counted, closed_loop)
        return reply

    # accounting

    def _count(self, class_index: int, intended_ns: int, closed_loop: bool) -> bool:
        """A request is about to be sent: whether it counts."""
        self._sent += 1
        window = self._window
        if window.start_ns is None and self._sent > self._spec.warmup_requests:
            self._open_window(intended_ns + round(self._spec.warmup_s * 1e9))
        if window.start_ns is None or intended_ns < window.start_ns:
            self._warmup_sent += 1
            return False
        self._counted[class_index] += 1
        if not closed_loop:
            self._first_open_ns = self._first_open_ns or intended_ns
            self._last_open_ns = max(self._last_open_ns, intended_ns)
        return True

    def _account(self, job: _Job, reply: Reply, counted: bool, closed_loop: bool) -> None:
        reply.end_ns = reply.end_ns or self._clock.now_ns()
        failed = reply.error_kind is not None
        self._failed += failed
        self._ok += not failed
        self._tokens += len(reply.chunk_ns)
        self._warmup_errors += failed and not counted and not self._stopped.is_set()
        self._last_end_ns = max(self._last_end_ns, reply.end_ns)
        ended = Ended(reply, job.prompt_tokens, job.output_tokens, counted, closed_loop)
        slo = self._spec.classes[job.class_index].slo
        self._tallies[job.class_index].add(ended, slo)
        self._total.add(ended, slo)

    def _class_result(self, index: int) -> ClassResult:
        one = self._spec.classes[index]
        arrivals = one.arrivals or self._spec.arrivals
        assert arrivals is not None, "a valid spec has arrivals for every class"
        shared = one.arrivals is None and len(self._spec.classes) > 1
        lengths = "trace" if isinstance(arrivals, Trace) else lengths_text(one.lengths)
        return self._tallies[index].result(
            one.name,
            arrivals_text(arrivals) + (f", share {one.weight:g}" if shared else ""),
            lengths,
            one.slo,
            self._ready.cache_off,
            self._offered_s(),
        )

    def _total_result(self) -> ClassResult:
        off, offered_s = self._ready.cache_off, self._offered_s()
        return self._total.result("total", "all", "all", Slo(), off, offered_s)

    def _offered_s(self) -> float:
        """How long requests were intended for: the window of a run bounded by time; else from
        the first to the last and one mean gap more."""
        if self._spec.duration_s is not None:
            return self._window.seconds
        span_s = (self._last_open_ns - self._first_open_ns) / 1e9
        number = sum(self._counted)
        return span_s * number / (number - 1) if number > 1 else 0.0

    # time

    def _open_window(self, start_ns: int) -> None:
        self._window.start_ns = start_ns
        if self._spec.duration_s is not None:
            self._window.end_ns = start_ns + round(self._spec.duration_s * 1e9)

    def _close_window(self) -> None:
        if self._window.start_ns is None:
            return
        now_ns = self._clock.now_ns()
        if self._window.end_ns is None:
            self._window.end_ns = now_ns if self._stopped.is_set() else self._last_end_ns + 1
        elif self._stopped.is_set():
            self._window.end_ns = min(self._window.end_ns, now_ns)

    def _class_over(self, index: int) -> bool:
        limit = self._spec.classes[index].requests
        return limit is not None and self._counted[index] >= limit

    def _over(self, stream: Stream) -> bool:
        """Whether the stream has nothing more to send."""
        limit, end_ns = self._spec.requests, self._window.end_ns
        return (
            self._stopped.is_set()
            or (end_ns is not None and self._clock.now_ns() >= end_ns)
            or (limit is not None and sum(self._counted) >= limit)
            or all(self._class_over(index) for index in stream.classes)
        )

    async def _reaches(self, due_ns: int) -> bool:
        """Wait for a moment; False if the run is over before it."""
        while not self._stopped.is_set():
            end_ns = self._window.end_ns
            if end_ns is not None and due_ns >= end_ns:
                return False
            left_s = (due_ns - self._clock.now_ns()) / 1e9
            if left_s <= 0:
                return True
            await asyncio.sleep(min(left_s, _LONGEST_SLEEP_S))
        return False

    async def _until_sent(self, senders: list[asyncio.Task[None]]) -> None:
        """Until an open loop has sent all, and the window of a bounded run is over."""
        stopped = asyncio.create_task(self._stopped.wait())
        waiting: set[asyncio.Task[None]] = set(senders)
        while waiting and not self._stopped.is_set():
            end_ns = self._window.end_ns
            if end_ns is not None and self._clock.now_ns() >= end_ns:
                break
            done, _ = await asyncio.wait(
                {*waiting, stopped}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done & waiting:
                task.result()  # a sender's own error ends the run
            waiting -= done
        stopped.cancel()
        end_ns = self._window.end_ns
        if end_ns is not None:
            await self._reaches(end_ns - 1)

    async def _drain(self, senders: list[asyncio.Task[None]]) -> None:
        """Wait for the replies that are under way, for as long as the spec says."""
        end_ns = self._clock.now_ns() + round(self._spec.drain_s * 1e9)
        while not self._stopped.is_set() and self._clock.now_ns() < end_ns:
            left = {task for task in (*senders, *self._tasks) if not task.done()}
            if not left:
                break
            await asyncio.wait(left, timeout=0.1)
        for sender in senders:
            if sender.done() and not sender.cancelled():
                sender.result()

    async def _tell(self, on_progress: OnProgress | None) -> None:
        while on_progress is not None:
            await asyncio.sleep(_PROGRESS_S)
            now_ns, start_ns = self._clock.now_ns(), self._window.start_ns
            on_progress(
                Progress(
                    elapsed_s=(now_ns - self._begun_ns) / 1e9,
                    sent=self._sent,
                    ok=self._ok,
                    failed=self._failed,
                    in_flight=len(self._live),
                    output_tokens=self._tokens + sum(len(r.chunk_ns) for r in self._live),
                    warming_up=start_ns is None or now_ns < start_ns,
                )
            )


async def _primed(
    producers: list[asyncio.Task[None]], queues: list[asyncio.Queue[tuple[Due, _Job] | None]]
) -> None:
    """Until every open loop has requests in store."""
    while not all(
        queue.full() or task.done() for queue, task in zip(queues, producers, strict=True)
    ):
        await asyncio.sleep(0.001)
    for task in producers:
        if task.done():
            task.result()


async def _cancel(tasks: list[asyncio.Task[None] | asyncio.Task[Reply]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _interrupts(stopped: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C ends the run in good order; the next ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_interrupt() -> None:
        stopped.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
