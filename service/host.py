"""The engine process: commands in from a socket, the loop, one frame a step out.

It is a process of its own so that nothing the gateway does (SSE, JSON, exporters, its
garbage collector) can hold the interpreter lock while the device waits. The process has
one thread of its own; it never blocks on the gateway: what the socket does not take is
kept, and when too much is kept, facts are dropped and counted, tokens never.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections import deque
from typing import TypeVar

from service import wire
from service.config import ConfigError, EngineConfig
from service.device.grammar_compiler import GrammarCompiler
from service.device.loader import LoadedEngine, load_executor
from service.engine.admission import Limits
from service.engine.fairness import Policy
from service.engine.host_tier import Retention
from service.engine.inbox import (
    Cancel,
    FlushCache,
    GrammarReady,
    Inbox,
    Pause,
    Resume,
    SetRecording,
    SetStepCost,
    Submit,
)
from service.engine.limits_record import record_of
from service.engine.loop import EngineLoop
from service.engine.scheduler import Scheduler
from service.engine.warm_up import warm_up
from telemetry.clock import Clock, MonotonicClock
from telemetry.engine_records import EngineStarted, StageTime
from telemetry.gc_watch import GcWatch, settle_collector
from telemetry.reasons import HostProcess, StartStage
from telemetry.recorder import Lane
from telemetry.records import Fact
from telemetry.stages import Stages

_RECEIVE_BYTES = 1 << 18
_BACKLOG_LIMIT_BYTES = 64 * 1024 * 1024
_PAUSES_KEPT = 1024


class GatewayGone(Exception):
    """The other end of the socket is closed: there is nobody left to serve."""


class Link:
    """The engine's end of the socket: never blocks on sending."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unframer = wire.Unframer()
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._dropped_facts = 0
        self._unread: deque[wire.ToEngine] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def wake(self) -> None:
        """Make a `receive` that waits return; any thread may call it."""
        with contextlib.suppress(BlockingIOError):  # it is awake already
            os.write(self._wake_write, b"x")

    def receive(self, wait_s: float | None) -> list[wire.ToEngine]:
        """Messages that are here. When there are none, waits up to `wait_s` (None: for as
        long as it takes) for one, or for `wake`. Also sends."""
        self._flush()
        messages = self._read()
        while not messages and wait_s != 0:
            writable = [self._connection.fileno()] if self._backlog else []
            readable = [self._connection.fileno(), self._wake_read]
            ready, sendable, _ = select.select(readable, writable, [], wait_s)
            self._flush()
            messages = self._read()
            woken = self._wake_read in ready
            if woken:
                os.read(self._wake_read, 4096)
            if woken or not (ready or sendable):
                break
        return messages

    def receive_one(self) -> wire.ToEngine:
        """The next message alone, however long it takes; those behind it stay unread."""
        while not self._unread:
            self._unread.extend(self.receive(None))
        return self._unread.popleft()

    def send(self, message: wire.ToGateway) -> None:
        data = wire.encode(message)
        self._backlog.append(memoryview(data))
        self._backlog_bytes += len(data)
        self._flush()

    def send_frame(self, frame: wire.Frame) -> None:
        """Send news of a step; sheds its facts when the gateway has stopped reading."""
        facts, lost = frame.facts, frame.lost_facts
        if self._backlog_bytes > _BACKLOG_LIMIT_BYTES:
            self._dropped_facts += len(facts)
            facts = []
        self.send(wire.Frame(frame.emissions, facts, lost + self._dropped_facts))

    def send_last(self, message: wire.ToGateway) -> None:
        """Send and wait until it is out: the process ends after this."""
        self._connection.setblocking(True)
        self.send(message)

    def _read(self) -> list[wire.ToEngine]:
        if self._unread:
            unread = list(self._unread)
            self._unread.clear()
            return unread
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError as error:
            raise GatewayGone from error
        if not data:
            raise GatewayGone
        decode = wire.to_engine_decoder.decode
        return [decode(payload) for payload in self._unframer.feed(data)]

    def _flush(self) -> None:
        while self._backlog:
            try:
                sent = self._connection.send(self._backlog[0])
            except BlockingIOError:
                return
            except ConnectionError as error:
                raise GatewayGone from error
            self._backlog_bytes -= sent
            rest = self._backlog.popleft()[sent:]
            if rest:
                self._backlog.appendleft(rest)


class EngineHost:
    """Feeds the loop from the link and the link from the loop."""

    def __init__(
        self,
        link: Link,
        inbox: Inbox,
        loop: EngineLoop,
        lane: Lane,
        clock: Clock,
        compiler: GrammarCompiler,
        pauses: Lane | None = None,
    ) -> None:
        self._link = link
        self._clock = clock
        self._compiler = compiler
        self._inbox = inbox
        self._loop = loop
        self._lane = lane
        self._pauses = Lane(1) if pauses is None else pauses

    def serve(self) -> None:
        """Run until told to shut down. Raises GatewayGone when the gateway went away."""
        while True:
            constrained: list[Submit] = []
            for message in self._link.receive(self._idle_s()):
                match message:
                    case Submit():
                        self._inbox.put(message)
                        if message.grammar is not None:
                            constrained.append(message)
                    case (
                        Cancel()
                        | Pause()
                        | Resume()
                        | FlushCache()
                        | SetRecording()
                        | SetStepCost()
                    ):
                        self._inbox.put(message)
                    case wire.Shutdown():
                        self._loop.apply_commands()
                        self._link.send_frame(wire.Frame([], self._take_facts(), self._lost))
                        return
                    case wire.Launch() | wire.UseVocabulary():
                        raise ValueError(f"a second {type(message).__name__}")
            self._compile(constrained)
            emissions = self._loop.step()
            facts = self._take_facts()
            if emissions or facts:
                self._link.send_frame(wire.Frame(emissions, facts, self._lost))

    def _take_facts(self) -> list[Fact]:
        facts = self._lane.drain()
        if len(self._pauses):
            facts += self._pauses.drain()
        return facts

    @property
    def _lost(self) -> int:
        return self._lane.lost + self._pauses.lost

    def _compile(self, submits: list[Submit]) -> None:
        """Have grammars compiled, of those requests only that the queue has taken."""
        if not submits:
            return
        self._loop.apply_commands()
        for submit in submits:
            if submit.seq_id in self._loop.scheduler.residents.live:
                assert submit.grammar is not None
                self._compiler.request(submit.seq_id, submit.grammar)

    def _idle_s(self) -> float | None:
        """How long nothing is to be done unless a message comes."""
        if self._loop.has_work or len(self._inbox):
            return 0
        wake_ns = self._loop.wake_ns
        return None if wake_ns is None else max(0.0, (wake_ns - self._clock.now_ns()) / 1e9)


def run_engine_process(connection: socket.socket) -> int:
    """The engine process from its first message to its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the gateway decides when we end
    link = Link(connection)
    try:
        return _run(link, _read_only(link, wire.Launch), MonotonicClock())
    except GatewayGone:
        return 0
    except ConfigError as error:
        link.send_last(wire.EngineFailed(str(error), is_config=True))
        return 2
    except Exception as error:
        link.send_last(wire.EngineFailed(f"{type(error).__name__}: {error}", is_config=False))
        raise


First = TypeVar("First", wire.Launch, wire.UseVocabulary)


def _read_only(link: Link, kind: type[First]) -> First:
    """The next message, which must be of that kind. Raises GatewayGone when told to end."""
    message = link.receive_one()
    if isinstance(message, wire.Shutdown):
        raise GatewayGone
    if not isinstance(message, kind):
        raise ValueError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message


def _run(link: Link, launch: wire.Launch, clock: Clock) -> int:
    config = launch.config
    lane, inbox = Lane(), Inbox()
    stages = Stages(clock, launch.begun_ns)
    stages.end(StartStage.IMPORTS)

    def progress(stage: str) -> None:
        link.send(wire.LoadProgress(stage))

    def on_ready(ready: GrammarReady) -> None:
        inbox.put(ready)
        link.wake()

    config.validate()
    compilers: list[GrammarCompiler] = []

    def make_compiler(vocab_logits: int) -> GrammarCompiler:
        # as many as can wait at once, or one would be pushed out before it is used
        kept = config.queue_limit_requests + config.max_seqs
        vocabulary = _read_only(link, wire.UseVocabulary).vocabulary
        compilers.append(GrammarCompiler(vocabulary, vocab_logits, clock, on_ready, kept))
        return compilers[0]

    loaded = load_executor(config, clock, progress, make_compiler, stages.end)
    loaded.own_process()
    limits = _limits(config, loaded)
    progress("warming up")
    warm_up(loaded.executor, limits)
    stages.end(StartStage.WARM_UP)
    scheduler = Scheduler(limits)
    loop = EngineLoop(scheduler, loaded.executor, inbox, lane, clock, depth=config.pipeline_depth)
    settle_collector()
    pauses = Lane(_PAUSES_KEPT)
    if config.watch_host:
        GcWatch(HostProcess.ENGINE, pauses, clock).install()
    stages.end(StartStage.ENGINE)
    lane.append(_started(config, limits, loaded, stages.done))
    link.send_frame(wire.Frame([], lane.drain(), lane.lost))
    EngineHost(link, inbox, loop, lane, clock, compilers[0], pauses).serve()
    return 0


def _limits(config: EngineConfig, loaded: LoadedEngine) -> Limits:
    return Limits(
        block_tokens=loaded.executor.block_tokens,
        blocks_total=loaded.executor.blocks_total,
        max_model_tokens=loaded.max_model_tokens,
        max_seqs=config.max_seqs,
        budget_tokens=config.max_batched_tokens,
        chunked_prefill=config.chunked_prefill,
        queue_limit_requests=config.queue_limit_requests,
        queue_limit_tokens=config.queue_limit_tokens,
        policy=Policy(config.fairness),
        ageing_ns=int(config.ageing_s * 1e9),
        tenant_max_seqs=config.tenant_max_seqs,
        tenant_queue_limit=config.tenant_queue_limit,
        itl_target_ns=_ns(config.itl_target_ms, 1e6),
        prefix_cache=config.prefix_cache,
        cache_identity=f"{config.model.kind} {config.model.path}; own tokenizer; no adapter; "
        f"{loaded.backend.dtype}",
        draft_tokens=config.draft_tokens,
        host_slots=loaded.executor.host_slots,
        retention=Retention(
            tenant_share=config.kv_offload_tenant_share, ttl_ns=_ns(config.kv_offload_ttl_s, 1e9)
        ),
    )


def _ns(value: float | None, factor: float) -> int | None:
    return None if value is None else int(value * factor)


def _started(
    config: EngineConfig, limits: Limits, loaded: LoadedEngine, stages: tuple[StageTime, ...]
) -> EngineStarted:
    return EngineStarted(
        at_ns=stages[-1].end_ns,
        pid=os.getpid(),
        model=config.model.name,
        backend=loaded.backend.name,
        dtype=loaded.backend.dtype,
        pipeline_depth=config.pipeline_depth,
        **record_of(limits),
        stages=stages,
        shape=loaded.shape,
    )
