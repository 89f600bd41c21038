"""The start of `phasescope serve --engines`: port and membership, before heavy imports."""

from __future__ import annotations

import faulthandler
import gc
from typing import TYPE_CHECKING

from service.composition.early_signals import EarlySignals
from service.config.settings import ServeConfig
from service.fleet.membership.static_file import StaticFile
from service.gateway.http.acceptor import raise_descriptor_limit
from service.gateway.http.listener import bind, release
from service.process.allocator import limit_arenas
from telemetry.facts.clock import MonotonicClock, process_start_ns
from telemetry.facts.reasons import StartStage
from telemetry.facts.stages import Stages

if TYPE_CHECKING:
    from service.composition.logs import Say


def run_fleet_gateway(config: ServeConfig, say: Say) -> int:
    """Serve until a signal; returns the exit code. Raises ConfigError."""
    gc.disable()  # until the service is ready: nothing that imports create is garbage
    limit_arenas()
    faulthandler.enable(2)  # a crash of the interpreter leaves all stacks on stderr
    stages = Stages(MonotonicClock(), process_start_ns())
    raise_descriptor_limit()
    assert config.fleet.engines is not None, "else it has an engine of its own"
    membership = StaticFile(config.fleet.engines)
    signals = EarlySignals()
    listener = bind(config.gateway)
    try:
        signals.let_in()
        stages.end(StartStage.LAUNCH)
        from service.composition.fleet.serving import serve_fleet

        stages.end(StartStage.GATEWAY_IMPORTS)
        return serve_fleet(config, listener, membership, stages, say)
    finally:
        release(listener, config.gateway)
