"""Runs a fleet gateway from start to end. It has everything that `service.composition.serving` has
but an engine: that is observed and steered at its node."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from functools import partial

from service.composition.clients.state import clients_state
from service.composition.logs import Say
from service.composition.recording import dump_on_signal
from service.composition.serving import SWITCH_S, Start, read_tokenizer
from service.composition.telemetry import Telemetry
from service.composition.telemetry_wiring import TelemetryInputs, build_telemetry
from service.composition.thread_stacks import gateway_stacks
from service.config.settings import ServeConfig
from service.fleet.membership.members import Membership
from service.gateway.engine_client.live_requests import RequestLister
from service.gateway.fleet.client import FleetClient
from service.gateway.fleet.digest import digest_of
from service.gateway.fleet.families import fleet_families
from service.gateway.fleet.replica_latency import FleetLatency, ReplicaLatency
from service.gateway.fleet.wire_time import WireTime
from service.gateway.generation.state import GatewayState
from service.gateway.http.listener import port_of
from service.gateway.routes.fleet_app import fleet_app
from service.gateway.server import run_gateway
from service.gateway.server_state import LiveRequest
from telemetry.facts.clock import Clock, MonotonicClock, unix_seconds
from telemetry.facts.fleet.routing_records import RoutingPolicy
from telemetry.facts.reasons import FactSource, StartStage
from telemetry.facts.recorder import Lane
from telemetry.facts.stages import Stages
from telemetry.host.gc_watch import settle_collector
from telemetry.metrics.connections import ConnectionCounts, connection_families
from telemetry.metrics.ingest_counts import IngestCounts, ingest_families

NOT_STEERED = "a fleet gateway has no engine of its own: ask the nodes"
_NOT_READY = "no engine of the fleet is ready; GET /debug/engines says why"


def serve_fleet(
    config: ServeConfig,
    listener: socket.socket,
    membership: Membership,
    stages: Stages,
    say: Say,
) -> int:
    """Serve until a signal; returns the exit code. Raises ConfigError."""
    import uvloop

    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, listener, membership, stages, say))
    say("stopped")
    return 0


async def _serve(
    config: ServeConfig,
    listener: socket.socket,
    membership: Membership,
    stages: Stages,
    say: Say,
) -> None:
    clock, lane, model = MonotonicClock(), Lane(source=FactSource.GATEWAY), config.engine.model
    tokenizer, vocabulary = await asyncio.to_thread(read_tokenizer, config, clock)
    stages.end(StartStage.TOKENIZER)
    policy = RoutingPolicy(config.fleet.routing)
    client = FleetClient(
        membership, lane, clock, model.name, digest_of(vocabulary), policy, config.fleet.split
    )
    live, handlers = set[str](), dict[str, LiveRequest]()
    connections, counts = ConnectionCounts(), IngestCounts()
    wire, replicas = WireTime(lambda: client.roles), ReplicaLatency(lambda: client.roles)
    observed = TelemetryInputs(
        engine=client,
        model=lambda: model.name,
        lanes=(lane,),
        is_busy=lambda: bool(live or handlers),
        stacks=lambda: "\n".join(["gateway", *gateway_stacks(), ""]),
        more=lambda: [
            *connection_families(connections),
            *ingest_families(counts),
            *fleet_families(client),
            *wire.families(),
        ],
        watch_host=config.engine.watch_host,
        told=(wire.on_timeline, replicas.on_timeline),
    )
    port = port_of(listener)
    telemetry = build_telemetry(config, clock, observed, port, None, NOT_STEERED)
    start = Start(config, clock, client, telemetry, stages, port, say)
    state = clients_state(
        config.gateway,
        model,
        tokenizer,
        clock,
        counts,
        lane=lane,
        engine=client,
        created_unix_s=unix_seconds(),
        views=telemetry,
        retry_after_s=lambda: telemetry.drain_rate.retry_after_s,
        start_report=lambda: start.report,
        live_request_ids=live,
        handlers=handlers,
        recorder=telemetry.recorder,
        connections=connections,
        slo=telemetry.slo_policy,
        not_ready_why=_NOT_READY,
    )
    latency = partial(_latency, client, telemetry, replicas, clock)
    await _run(state, telemetry, client, listener, start, clock, latency)


def _latency(
    client: FleetClient, telemetry: Telemetry, replicas: ReplicaLatency, clock: Clock
) -> FleetLatency:
    """The latencies of a fleet's engines as of now. Any thread may ask."""
    with telemetry.pump.caught_up():
        return replicas.view(clock.now_ns(), client.roles)


async def _run(
    state: GatewayState,
    telemetry: Telemetry,
    client: FleetClient,
    listener: socket.socket,
    start: Start,
    clock: Clock,
    latency: Callable[[], FleetLatency],
) -> None:
    """Serve requests until a signal, then leave the nodes."""
    lister = RequestLister(state.handlers, state.lane, clock)
    listing = asyncio.create_task(lister.run(), name="request-lister")
    following = asyncio.create_task(client.run(), name="membership")
    settle_collector()
    telemetry.start()
    dump_on_signal(telemetry.recorder)
    try:
        await run_gateway(
            fleet_app(state, client.links_view, latency), state, listener, following,
            lambda: start.announce(state.ingest, _nobody_else),
        )  # fmt: skip
    finally:
        for task in (listing, following):
            task.cancel()
        await asyncio.wait({listing, following})
        await asyncio.to_thread(start.console.stop)
        await state.ingest.close()
        await asyncio.to_thread(telemetry.stop)


async def _nobody_else() -> bool:
    """Bodies are read by this process' own workers."""
    return False
