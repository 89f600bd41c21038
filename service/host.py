"""The engine process: commands in from a socket, the loop, one frame a step out.

It is a process of its own so that nothing the gateway does (SSE, JSON, exporters, its
garbage collector) can hold the interpreter lock while the device waits. The process has
one thread of its own; it never blocks on the gateway: what the socket does not take is
kept, and when too much is kept, facts are dropped and counted, tokens never.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from collections import deque

from service import wire
from service.config import ConfigError, EngineConfig
from service.device.loader import LoadedEngine, load_executor
from service.engine.admission import Limits
from service.engine.inbox import Cancel, Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.scheduler import Scheduler
from telemetry.clock import Clock, MonotonicClock
from telemetry.recorder import Lane
from telemetry.records import EngineStarted

_RECEIVE_BYTES = 1 << 18
_BACKLOG_LIMIT_BYTES = 64 * 1024 * 1024


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

    def receive(self, wait: bool) -> list[wire.ToEngine]:
        """Messages that are here; with `wait`, blocks until there is one. Also sends."""
        self._flush()
        while True:
            messages = self._read()
            if messages or not wait:
                return messages
            writable = [self._connection] if self._backlog else []
            select.select([self._connection], writable, [])
            self._flush()

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

    def __init__(self, link: Link, inbox: Inbox, loop: EngineLoop, lane: Lane) -> None:
        self._link = link
        self._inbox = inbox
        self._loop = loop
        self._lane = lane

    def serve(self) -> None:
        """Run until told to shut down. Raises GatewayGone when the gateway went away."""
        while True:
            for message in self._link.receive(wait=not self._loop.has_work):
                match message:
                    case Submit() | Cancel():
                        self._inbox.put(message)
                    case wire.Shutdown():
                        return
                    case wire.Launch():
                        raise ValueError("a second Launch")
            emissions = self._loop.step()
            facts = self._lane.drain()
            if emissions or facts:
                self._link.send_frame(wire.Frame(emissions, facts, self._lane.lost))


def run_engine_process(connection: socket.socket) -> int:
    """The engine process from its first message to its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when we end
    link = Link(connection)
    try:
        config = _read_launch(link)
        return _run(link, config, MonotonicClock())
    except GatewayGone:
        return 0
    except ConfigError as error:
        link.send_last(wire.EngineFailed(str(error), is_config=True))
        return 2
    except Exception as error:
        link.send_last(wire.EngineFailed(f"{type(error).__name__}: {error}", is_config=False))
        raise


def _read_launch(link: Link) -> EngineConfig:
    first, *rest = link.receive(wait=True)
    if not isinstance(first, wire.Launch) or rest:
        raise ValueError(f"expected one Launch, got {type(first).__name__} and {len(rest)} more")
    return first.config


def _run(link: Link, config: EngineConfig, clock: Clock) -> int:
    def progress(stage: str) -> None:
        link.send(wire.LoadProgress(stage))

    config.validate()
    loaded = load_executor(config, clock, progress)
    lane, inbox = Lane(), Inbox()
    scheduler = Scheduler(_limits(config, loaded))
    loop = EngineLoop(scheduler, loaded.executor, inbox, lane, clock, depth=config.pipeline_depth)
    _settle_garbage_collector()
    lane.append(_started(config, loaded, clock))
    link.send_frame(wire.Frame([], lane.drain(), lane.lost))
    EngineHost(link, inbox, loop, lane).serve()
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
    )


def _started(config: EngineConfig, loaded: LoadedEngine, clock: Clock) -> EngineStarted:
    return EngineStarted(
        at_ns=clock.now_ns(),
        pid=os.getpid(),
        model=config.model.name,
        backend=loaded.backend,
        dtype=loaded.dtype,
        blocks_total=loaded.executor.blocks_total,
        block_tokens=loaded.executor.block_tokens,
        max_model_tokens=loaded.max_model_tokens,
        max_seqs=config.max_seqs,
        budget_tokens=config.max_batched_tokens,
        chunked_prefill=config.chunked_prefill,
        pipeline_depth=config.pipeline_depth,
        queue_limit_requests=config.queue_limit_requests,
        queue_limit_tokens=config.queue_limit_tokens,
    )


def _settle_garbage_collector() -> None:
    """What loading left behind will live as long as the process: never scan it again."""
    gc.collect()
    gc.freeze()
