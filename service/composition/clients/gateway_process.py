"""One of several gateway processes: builds its parts, serves clients, sends facts to the main
process. The main process starts it and ends it (`service.composition.clients.gateways`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading

from service.composition.clients.state import clients_state
from service.composition.logs import Say, set_up_logging
from service.composition.serving import SWITCH_S
from service.config.settings import ConfigError
from service.gateway.http.acceptor import raise_descriptor_limit
from service.gateway.processes import messages
from service.gateway.processes.engine_link import JoiningClient
from service.gateway.processes.facts_out import FactsOut
from service.gateway.processes.forwarding import Forwarding
from service.gateway.processes.main_link import MainLink
from service.gateway.processes.shared_count import SharedCount
from service.gateway.processes.unwatched import only_timings
from service.gateway.routes.app import generation_apps
from service.gateway.routes.app_frame import with_ids
from service.gateway.server import run_until
from service.gateway.server_state import Drain, LiveRequest
from service.process.link import Link, LinkClosed
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import FactSource, HostProcess
from telemetry.facts.recorder import Lane
from telemetry.host import proc
from telemetry.host.gc_watch import GcWatch, settle_collector
from telemetry.host.loop_probe import LoopProbe
from telemetry.metrics.connections import ConnectionCounts
from telemetry.metrics.ingest_counts import IngestCounts

_PAUSES = 1024  # facts that wait to be sent
_ENGINE_S = 1.0  # a process that replaces another takes no connection before it has an engine


def run_gateway_process(
    connection: socket.socket, listener: socket.socket, count_fd: int, print_line: Say
) -> int:
    """Run until the main process says so or has ended; returns the exit code."""
    import uvloop

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the main process says when to stop
    sys.setswitchinterval(SWITCH_S)
    raise_descriptor_limit()
    link = Link(connection)
    try:
        launch, early = _launch(link, connection)
    except LinkClosed:
        return 0
    set_up_logging("json" if launch.log_format == "json" else "text", print_line)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            process = _GatewayProcess(launch, link, SharedCount(count_fd))
            runner.run(process.run(listener, early))
    except ConfigError as error:
        link.block()
        link.send(messages.packed(messages.GatewayFailed(str(error))))
        return 2
    return 0


def _launch(link: Link, connection: socket.socket) -> tuple[messages.LaunchGateway, list[bytes]]:
    """The first message, and those that came with it. Raises LinkClosed."""
    connection.setblocking(True)
    while not (found := link.receive()):
        pass
    connection.setblocking(False)
    first, *early = found
    message = messages.to_process_decoder.decode(first)
    assert isinstance(message, messages.LaunchGateway), message
    return message, early


class _GatewayProcess:
    """All parts of the process; made on its event loop."""

    def __init__(self, launch: messages.LaunchGateway, link: Link, count: SharedCount) -> None:
        self._launch, self._link = launch, link
        self._clock = MonotonicClock()
        self._lane = Lane(source=FactSource.GATEWAY)
        self._of_gc, self._of_probe = Lane(_PAUSES), Lane(_PAUSES)
        self._connections, self._ingest_counts = ConnectionCounts(), IngestCounts()
        self._engine = JoiningClient(launch.space)
        self._handlers: dict[str, LiveRequest] = {}
        self._drain = Drain()
        self._live_ids: set[str] = set()
        lanes = (self._lane, self._of_gc, self._of_probe)
        engine = self._engine
        self._out = FactsOut(
            link, count, lanes, lambda: engine.read_so_far, self._connections, self._ingest_counts
        )

    async def run(self, listener: socket.socket, early: list[bytes]) -> None:
        """Serve until told to stop; `early` came with the first message. Raises ConfigError."""
        launch, out, engine = self._launch, self._out, self._engine
        main = MainLink(self._link, out, self._handlers, engine.health, self._drain, engine.give_up)
        main.start(early)
        engine.before_commands = out.flush
        tokenizer = await asyncio.to_thread(load_tokenizer, launch.model)
        state = clients_state(
            launch.config,
            launch.model,
            tokenizer,
            self._clock,
            self._ingest_counts,
            lane=self._lane,
            engine=engine,
            created_unix_s=launch.created_unix_s,
            views=only_timings(main.timings),
            retry_after_s=lambda: main.retry_after_s,
            start_report=lambda: None,
            live_request_ids=self._live_ids,
            handlers=self._handlers,
            drain=self._drain,
            connections=self._connections,
            slo=launch.slo,
            number=launch.space,
        )
        app = with_ids(
            state, Forwarding(launch.main_path, launch.config), generation_apps(state), main
        )
        tasks = [
            asyncio.create_task(engine.run(launch.engine_path), name="engine link"),
            asyncio.create_task(out.beat(), name="facts"),
        ]
        with contextlib.suppress(TimeoutError):  # an engine that loads is said to be not ready
            async with asyncio.timeout(_ENGINE_S):
                await engine.wait_ready()
        self._watch_pauses()
        settle_collector()
        state.ingest.warm_up()
        out.send(messages.GatewayReady())
        try:
            await run_until(app, state, listener, main.stop)
        finally:
            for task in tasks:
                task.cancel()
            await state.ingest.close()
            out.flush()

    def _watch_pauses(self) -> None:
        """Record collections of garbage, and when the event loop is late."""
        if not self._launch.watch_host:
            return
        number = self._launch.space
        GcWatch(HostProcess.GATEWAY, self._of_gc, self._clock, number=number).install()
        thread = threading.main_thread().native_id or os.getpid()
        own_times = proc.thread_times(os.getpid(), thread)
        probe = LoopProbe(
            self._clock, self._of_probe, own_times.read, lambda: bool(self._live_ids), number
        )
        self._engine.on_frame = probe.alive
        probe.start(asyncio.get_running_loop(), threading.get_ident())
