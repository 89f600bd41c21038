"""The first half second of `phasescope engine`: ports and engine process, before heavy imports."""

from __future__ import annotations

import faulthandler
import gc
import socket
from typing import TYPE_CHECKING

from service.composition.early_signals import EarlySignals
from service.config.fleet_settings import address_of
from service.config.settings import ConfigError, ServeConfig
from service.fleet.wire.key_file import KeyFileError, read_key
from service.gateway.engine_client.engine_process import start_engine
from service.gateway.http.acceptor import raise_descriptor_limit
from service.gateway.http.listener import bind, release
from service.process.allocator import limit_arenas
from telemetry.facts.clock import MonotonicClock, process_start_ns
from telemetry.facts.reasons import StartStage
from telemetry.facts.stages import Stages

if TYPE_CHECKING:
    from service.composition.logs import Say

_BACKLOG = 128


def run_node(config: ServeConfig, say: Say) -> int:
    """Serve gateways until a signal; returns the exit code. Raises ConfigError."""
    gc.disable()  # until the service is ready: nothing that imports create is garbage
    limit_arenas()
    faulthandler.enable(2)  # a crash of the interpreter leaves all stacks on stderr
    clock = MonotonicClock()
    stages = Stages(clock, process_start_ns())
    raise_descriptor_limit()
    key = _key(config)
    signals = EarlySignals()
    http = bind(config.gateway)
    try:
        signals.let_in()
        with _listening(config.node.listen) as gateways:
            try:
                engine = start_engine(clock)
            except OSError as error:
                raise ConfigError(f"cannot start the engine process: {error}") from error
            stages.end(StartStage.LAUNCH, engine.begun_ns)
            try:
                from service.composition.node.serving import serve_node

                stages.end(StartStage.GATEWAY_IMPORTS)
                return serve_node(config, http, gateways, key, engine, stages, say)
            finally:
                engine.close()
    finally:
        release(http, config.gateway)


def _key(config: ServeConfig) -> bytes:
    assert config.node.key_file is not None, "validated"
    try:
        return read_key(config.node.key_file)
    except KeyFileError as error:
        raise ConfigError(f"--key-file {error}") from error


def _listening(listen: str) -> socket.socket:
    """Raises ConfigError."""
    host, port = address_of(listen, "--listen")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"--listen {listen}: {error.strerror}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on --listen {listen}: {error.strerror}") from error
    found.setblocking(False)
    return found
