"""One run: arrivals in, replies out, figures at the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from lab.load.accounting import Accounting, OnEnded
from lab.load.http import Pool, parse_url
from lab.load.machine import this_machine
from lab.load.result import BenchResult, Progress
from lab.load.sending import Sender
from lab.load.server import Ready, prepare
from lab.load.spec import BenchSpec, validate
from telemetry.facts.clock import Clock, MonotonicClock, unix_seconds

_PROGRESS_S = 1.9  # `Progress` promises at least every 2 s
_POLL_S = 0.1

OnProgress = Callable[[Progress], None]


def run_bench(
    spec: BenchSpec,
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
    on_ended: OnEnded | None = None,
) -> BenchResult:
    """Run to the end, or to the first SIGINT, and return what was measured. `on_ended` is told each
    request of the run as it ends.

    Raises ConfigError for a spec that cannot be run and BenchError when the server cannot be
    measured at all; requests that fail are part of the result.
    """
    validate(spec)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_bench(spec, on_progress, clock or MonotonicClock(), on_ended))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one: client and server share the cores."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _bench(
    spec: BenchSpec, on_progress: OnProgress | None, clock: Clock, on_ended: OnEnded | None
) -> BenchResult:
    pool = Pool(parse_url(spec.url), clock)
    began_unix_s = unix_seconds()
    try:
        ready = await prepare(spec, pool, clock)
        accounting = Accounting(spec, on_ended)
        sender = Sender(spec, ready, pool, clock, accounting)
        await _load(spec, sender, accounting, clock, on_progress)
        return _result(spec, ready, accounting, sender, pool, began_unix_s)
    finally:
        pool.close()


async def _load(
    spec: BenchSpec,
    sender: Sender,
    accounting: Accounting,
    clock: Clock,
    on_progress: OnProgress | None,
) -> None:
    """Send everything, wait for the replies, close the window."""
    with _interruptible(accounting):
        helpers: list[asyncio.Task[None]] = []
        try:
            await sender.prime()
            loops = sender.start()
            helpers += loops
            if on_progress is not None:
                helpers.append(
                    asyncio.create_task(_report_progress(sender, accounting, clock, on_progress))
                )
            await _until_sent(loops, sender, accounting, clock)
            await _drain(spec, loops, sender, accounting, clock)
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await sender.cancel()
    accounting.close(clock.now_ns())


async def _until_sent(
    loops: list[asyncio.Task[None]], sender: Sender, accounting: Accounting, clock: Clock
) -> None:
    """Until all is sent, and the window of a run bounded by time is over."""
    waiting = set(loops)
    while waiting and not accounting.interrupted:
        end_ns = accounting.window.end_ns
        if end_ns is not None and clock.now_ns() >= end_ns:
            return
        done, waiting = await asyncio.wait(waiting, timeout=_POLL_S)
        for task in done:
            task.result()  # an error of the bench itself ends the run
    if accounting.window.end_ns is not None:
        await sender.wait_until(accounting.window.end_ns - 1)


async def _drain(
    spec: BenchSpec,
    loops: list[asyncio.Task[None]],
    sender: Sender,
    accounting: Accounting,
    clock: Clock,
) -> None:
    """Wait for the replies of requests in flight, no longer than `drain_s`."""
    deadline_ns = clock.now_ns() + round(spec.drain_s * 1e9)
    while not accounting.interrupted and clock.now_ns() < deadline_ns:
        left: set[asyncio.Task[Any]] = {t for t in (*loops, *sender.sends) if not t.done()}
        if not left:
            break
        await asyncio.wait(left, timeout=_POLL_S)
    for task in loops:
        if task.done():
            task.result()


async def _report_progress(
    sender: Sender, accounting: Accounting, clock: Clock, on_progress: OnProgress
) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        now_ns, start_ns = clock.now_ns(), accounting.window.start_ns
        on_progress(
            Progress(
                elapsed_s=(now_ns - sender.begun_ns) / 1e9,
                sent=accounting.sent,
                ok=accounting.ok,
                failed=accounting.failed,
                in_flight=len(sender.live),
                chunks=accounting.chunks + sum(len(reply.chunk_ns) for reply in sender.live),
                warming_up=start_ns is None or now_ns < start_ns,
            )
        )


def _result(
    spec: BenchSpec,
    ready: Ready,
    accounting: Accounting,
    sender: Sender,
    pool: Pool,
    began_unix_s: int,
) -> BenchResult:
    shown = msgspec.structs.replace(
        spec,
        api_key=None,
        headers=_hidden(spec.headers),
        classes=tuple(
            msgspec.structs.replace(one, headers=_hidden(one.headers)) for one in spec.classes
        ),
    )
    total, classes = accounting.results(ready.cache_off)
    return BenchResult(
        partial=accounting.interrupted,
        began_unix_s=began_unix_s,
        window_s=accounting.window.seconds,
        warmup_requests=accounting.warmup_requests,
        warmup_errors=accounting.warmup_errors,
        clipped=sender.clipped,
        connections=pool.opened,
        salt=ready.salt,
        token_ids=ready.token_ids,
        total=total,
        classes=classes,
        server=ready.server,
        machine=this_machine(),
        spec=msgspec.to_builtins(shown),
    )


def _hidden(headers: dict[str, str]) -> dict[str, str]:
    """Their values may be keys."""
    return dict.fromkeys(headers, "(not shown)")


@contextlib.contextmanager
def _interruptible(accounting: Accounting) -> Iterator[None]:
    """The first Ctrl-C ends the run and keeps its results; the next ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_interrupt() -> None:
        accounting.interrupted = True
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
