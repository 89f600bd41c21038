"""Runs the sidecar of an attached engine from start to end: its socket, telemetry, and HTTP server.

It has everything that `serving` has except an engine: nothing here starts, changes or ends one.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from service.attach.sidecar.attached import AttachedEngine, AttachView
from service.attach.sidecar.socket_file import SocketUnusable, default_path, listen, remove
from service.attach.wire import socket_path
from service.composition.attached.families import attach_families
from service.composition.console import ConsoleProcess
from service.composition.early_signals import EarlySignals
from service.composition.logs import Say
from service.composition.recording import dump_on_signal
from service.composition.telemetry import Telemetry
from service.composition.telemetry_wiring import TelemetryInputs, build_telemetry
from service.composition.thread_stacks import gateway_stacks
from service.config.http_settings import SOCKET_PATH_BYTES
from service.config.settings import AttachedConfig, ConfigError
from service.gateway.engine_client.stacks import kernel_lines
from service.gateway.http.acceptor import raise_descriptor_limit
from service.gateway.http.listener import bind, port_of, release
from service.gateway.routes.attached_app import AttachedState, attached_app
from service.gateway.server import run_gateway
from telemetry.facts.clock import MonotonicClock
from telemetry.host.gc_watch import settle_collector
from telemetry.metrics.connections import ConnectionCounts, connection_families

log = logging.getLogger("phasescope.attach")

NOT_STEERED = "an attached engine takes no commands, and its scheduler is not replayed here"
_NOT_READY = "no engine is attached: start one with PHASESCOPE_ATTACH set"


def run_sidecar(
    config: AttachedConfig,
    say: Say,
    announce: Callable[[Path, str], None],
    held: int | None = None,
) -> int:
    """Observe until a signal, or until the pipe `held` ends; returns the exit code. `announce` is
    called with the socket's path and the HTTP address when both are open and nothing else can be
    wrong with the settings. Raises ConfigError."""
    import uvloop

    signals = EarlySignals()
    faulthandler.enable(2)  # a crash of the interpreter leaves all stacks on stderr
    raise_descriptor_limit()
    http = bind(config.gateway)
    try:
        path = _path(config, port_of(http))
        try:
            attach = listen(path)
        except SocketUnusable as error:
            raise ConfigError(f"--socket {error}") from error
        try:
            signals.let_in()
            ready = partial(announce, path, _address(config, port_of(http)))
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_observe(config, http, attach, say, held, ready))
        finally:
            remove(path, attach)
    finally:
        release(http, config.gateway)
    say("stopped")
    return 0


def _path(config: AttachedConfig, port: int) -> Path:
    """Absolute: the engine may run in another folder. Raises ConfigError."""
    stated = config.attach.socket
    if stated is None:
        return (socket_path() or default_path(port)).absolute()
    found = Path(stated).absolute()
    if len(os.fsencode(found)) > SOCKET_PATH_BYTES:
        raise ConfigError(f"--socket {found}: the path is longer than {SOCKET_PATH_BYTES} bytes")
    return found


def _address(config: AttachedConfig, port: int) -> str:
    http = config.gateway.http
    if http.uds is not None:
        return f"unix:{http.uds}"
    return f"{'https' if http.is_tls else 'http'}://{config.gateway.host}:{port}"


async def _observe(
    config: AttachedConfig,
    http: socket.socket,
    attach: socket.socket,
    say: Say,
    held: int | None,
    ready: Callable[[], None],
) -> None:
    """Raises ConfigError, before it calls `ready`."""
    clock, connections = MonotonicClock(), ConnectionCounts()
    engine = AttachedEngine(clock)
    observed = TelemetryInputs(
        engine=engine,
        model=lambda: engine.model,
        lanes=(engine.lane,),
        is_busy=lambda: engine.is_busy,
        stacks=lambda: _stacks(engine),
        more=lambda: [*connection_families(connections), *attach_families(engine.view())],
        watch_host=config.watch_host,
    )
    telemetry = build_telemetry(config, clock, observed, port_of(http), None, NOT_STEERED)
    state = AttachedState(
        config=config.gateway,
        clock=clock,
        engine=engine,
        views=telemetry,
        live_request_ids=set(),
        recorder=telemetry.recorder,
        connections=connections,
        not_ready_why=_NOT_READY,
        attachment=engine.view,
        attachment_type=AttachView,
    )
    console = ConsoleProcess(config, port_of(http))
    settle_collector()
    telemetry.start()
    dump_on_signal(telemetry.recorder)
    if held is not None:
        _end_with(held)
    observing = asyncio.create_task(engine.run(attach), name="attached")
    try:
        ready()
        await run_gateway(
            attached_app(state), state, http, observing, lambda: _announce(telemetry, console, say)
        )
    finally:
        observing.cancel()
        await asyncio.wait({observing})
        await asyncio.to_thread(console.stop)
        await asyncio.to_thread(telemetry.stop)


def _end_with(held: int) -> None:
    """Drain as on SIGTERM when the pipe ends: its other end is the parent's."""
    loop = asyncio.get_running_loop()

    def is_over() -> None:
        loop.remove_reader(held)
        signal.raise_signal(signal.SIGTERM)

    loop.add_reader(held, is_over)


async def _announce(telemetry: Telemetry, console: ConsoleProcess, say: Say) -> None:
    exporter = telemetry.exporter
    if exporter is not None:
        say(f"spans go to {exporter.target}, tracing {exporter.sampler.policy.mode}")
    if telemetry.pusher is not None:
        say(f"metrics go to {telemetry.pusher.target}")
    try:
        console.start()
    except OSError as error:
        say(f"the console does not start: {error}")


def _stacks(engine: AttachedEngine) -> str:
    """The sidecar's own, and what the kernel says of the engine's threads: a signal to a process of
    others is not ours to send."""
    core = engine.connections.core
    lines = ["sidecar", *gateway_stacks(), ""]
    for stream in engine.connections.streams:
        lines.append(f"{stream.hello.role.value}, process {stream.hello.pid}")
        lines += kernel_lines(stream.pid) if stream.pid is not None else ["not seen from here"]
        lines.append("")
    if core is None:
        lines.append("no engine core is attached")
    return "\n".join(lines) + "\n"
