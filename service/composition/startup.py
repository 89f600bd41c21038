"""The first half second of `phasescope serve`: port and engine process, before heavy imports.

The port is bound and the engine process started, and only then are the gateway's libraries
imported, while the engine imports torch on another core. So this module imports as little as
possible.
"""

from __future__ import annotations

import faulthandler
import gc
from typing import TYPE_CHECKING

from service.composition.early_signals import EarlySignals
from service.config.settings import ConfigError, ServeConfig
from service.gateway.engine_client.engine_process import start_engine
from service.gateway.http.acceptor import raise_descriptor_limit
from service.gateway.processes.sockets import open_sockets
from service.process.allocator import limit_arenas
from telemetry.facts.clock import MonotonicClock, process_start_ns
from telemetry.facts.reasons import StartStage
from telemetry.facts.stages import Stages

if TYPE_CHECKING:
    from service.composition.logs import Say


def run_service(config: ServeConfig, say: Say) -> int:
    """Serve until a signal; returns the exit code. Raises ConfigError."""
    gc.disable()  # until the service is ready: nothing that imports create is garbage
    limit_arenas()
    faulthandler.enable(2)  # a crash of the interpreter leaves all stacks on stderr
    clock = MonotonicClock()
    stages = Stages(clock, process_start_ns())
    raise_descriptor_limit()
    signals = EarlySignals()
    sockets = open_sockets(config.gateway)
    try:
        signals.let_in()
        try:
            engine = start_engine(clock, sockets.engine)
        except OSError as error:
            raise ConfigError(f"cannot start the engine process: {error}") from error
        stages.end(StartStage.LAUNCH, engine.begun_ns)
        try:
            from service.composition.serving import serve

            stages.end(StartStage.GATEWAY_IMPORTS)
            return serve(config, sockets, engine, stages, say)
        finally:
            engine.close()
    finally:
        sockets.close(config.gateway)
