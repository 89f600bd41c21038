"""Runs an engine node from start to end: its engine, its telemetry, gateways, and HTTP for
operators. It has everything that `service.composition.serving` has but clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence

from starlette.types import ASGIApp

from service.composition.clients.state import clients_state
from service.composition.logs import Say
from service.composition.node.listener import GatewaysLost, NodeListener, end_of, identity
from service.composition.node.prompts import prompts_of
from service.composition.recording import dump_on_signal
from service.composition.serving import SWITCH_S, Start, end_engine, read_tokenizer
from service.composition.telemetry import Telemetry
from service.composition.telemetry_wiring import ControlledEngine, TelemetryInputs, build_telemetry
from service.composition.thread_stacks import both_stacks
from service.config.settings import ConfigError, ServeConfig
from service.engine.vocabulary import Vocabulary
from service.fleet.wire.families import node_families
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.engine_process import EngineProcess
from service.gateway.engine_client.live_requests import RequestLister
from service.gateway.engine_client.supervisor import EngineStartFailed, Supervisor
from service.gateway.fleet.digest import digest_of
from service.gateway.generation.state import GatewayState
from service.gateway.http.listener import port_of
from service.gateway.routes.app_frame import framed_app
from service.gateway.routes.openapi import openapi_route
from service.gateway.routes.ops import ops_routes
from service.gateway.routes.peer_routes import peer_routes
from service.gateway.routes.route_table import DESCRIPTIONS
from service.gateway.server import run_gateway
from service.gateway.server_state import Drain, LiveRequest
from service.process.frames import KvLaunch
from telemetry.facts.clock import Clock, MonotonicClock, unix_seconds
from telemetry.facts.reasons import FactSource, StartStage
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from telemetry.facts.stages import Stages
from telemetry.host.gc_watch import settle_collector
from telemetry.metrics.connections import ConnectionCounts, connection_families
from telemetry.metrics.ingest_counts import IngestCounts

log = logging.getLogger("phasescope.fleet")

_EXIT_LOST = 1


def serve_node(
    config: ServeConfig,
    http: socket.socket,
    gateways: socket.socket,
    key: bytes,
    engine: EngineProcess,
    stages: Stages,
    say: Say,
) -> int:
    """Serve gateways until a signal; returns the exit code. Raises ConfigError."""
    import uvloop

    sys.setswitchinterval(SWITCH_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            node = _Node(config, http, gateways, key, stages, say)
            runner.run(node.run(engine))
    except EngineStartFailed as error:
        raise ConfigError(str(error)) from error
    except GatewaysLost as error:
        cause = error.__cause__
        log.error("the node has ended: it does not listen to gateways (%s)", error, exc_info=cause)
        return _EXIT_LOST
    say("stopped")
    return 0


class _Node:
    """All parts of the node; made before its event loop, used on it."""

    def __init__(
        self,
        config: ServeConfig,
        http: socket.socket,
        gateways: socket.socket,
        key: bytes,
        stages: Stages,
        say: Say,
    ) -> None:
        self._config, self._http, self._gateways, self._key = config, http, gateways, key
        self._stages, self._say = stages, say
        self._clock: Clock = MonotonicClock()
        self._lane = Lane(source=FactSource.GATEWAY)
        self._engine_lane = Lane(source=FactSource.ENGINE)
        self._client = EngineClient(self._engine_lane, say)
        name = config.node.name or config.node.listen
        self._client.kv_launch = KvLaunch(
            name, key, config.node.kv_address, config.node.kv_transport
        )
        self._handlers: dict[str, LiveRequest] = {}
        self._drain = Drain()

    async def run(self, first: EngineProcess) -> None:
        """Until a signal. Raises ConfigError, EngineStartFailed, GatewaysLost."""
        config, client = self._config, self._client
        supervisor = Supervisor(
            client,
            config.engine,
            self._clock,
            self._lane,
            first,
            config.gateway.engine_deadline_s,
        )
        engine = asyncio.create_task(supervisor.run(), name="supervisor")
        try:
            tokenizer, vocabulary = await asyncio.to_thread(read_tokenizer, config, self._clock)
            self._stages.end(StartStage.TOKENIZER)
            client.use_vocabulary(vocabulary)
            listener = self._listener(vocabulary)
            connections, counts = ConnectionCounts(), IngestCounts()
            telemetry = self._telemetry(listener, supervisor, connections)
            start = Start(
                config, self._clock, client, telemetry, self._stages, port_of(self._http),
                self._say, f"gateways connect at {config.node.listen}",
            )  # fmt: skip
            state = clients_state(
                config.gateway,
                config.engine.model,
                tokenizer,
                self._clock,
                counts,
                lane=self._lane,
                engine=client,
                created_unix_s=unix_seconds(),
                views=telemetry,
                retry_after_s=lambda: telemetry.drain_rate.retry_after_s,
                start_report=lambda: start.report,
                live_request_ids=set(),
                handlers=self._handlers,
                drain=self._drain,
                recorder=telemetry.recorder,
                connections=connections,
                slo=telemetry.slo_policy,
                adapters=config.engine,
            )
            await self._serve(state, telemetry, listener, engine, supervisor, start)
        finally:
            await end_engine(supervisor, engine)
        await engine

    def _listener(self, vocabulary: Vocabulary) -> NodeListener:
        config = self._config
        name = config.node.name or config.node.listen
        return NodeListener(
            self._clock,
            self._client,
            self._lane,
            self._key,
            identity(name, config.engine.model.name, digest_of(vocabulary)),
            len(vocabulary.token_bytes),
            self._handlers,
            self._drain,
            config.node.role,
        )

    def _telemetry(
        self, listener: NodeListener, supervisor: Supervisor, connections: ConnectionCounts
    ) -> Telemetry:
        config, client = self._config, self._client
        observed = TelemetryInputs(
            engine=client,
            model=lambda: config.engine.model.name,
            # in this order: the facts of a submit come before the engine's, or with them
            lanes=(self._engine_lane, self._lane),
            is_busy=lambda: bool(self._handlers),
            stacks=lambda: both_stacks(supervisor.engine),
            more=lambda: [
                *connection_families(connections),
                *node_families(listener.counts, listener.gateways),
                *listener.kv.families(),
            ],
            watch_host=config.engine.watch_host,
            told=(listener.accounts.on_timeline,),
        )
        telemetry = build_telemetry(
            config, self._clock, observed, port_of(self._http), ControlledEngine(config, client)
        )
        probe, loads = client.on_frame, listener.loads
        prompts = prompts_of(
            client, self._lane, self._handlers, listener.welcome.model, self._clock
        )

        def on_frame(facts: Sequence[Fact]) -> None:
            probe(facts)
            loads.take(facts)
            prompts.take(facts)
            listener.kv.take(facts)

        client.on_frame = on_frame
        return telemetry

    async def _serve(
        self,
        state: GatewayState,
        telemetry: Telemetry,
        listener: NodeListener,
        engine: asyncio.Task[None],
        supervisor: Supervisor,
        start: Start,
    ) -> None:
        """Serve until a signal, then end the engine before the telemetry that reads it. Raises
        EngineStartFailed, GatewaysLost."""
        lister = RequestLister(state.handlers, state.lane, state.clock)
        listening = asyncio.create_task(listener.run(self._gateways), name="gateways")
        ending = asyncio.create_task(end_of(engine, listening), name="end")
        listing = asyncio.create_task(lister.run(), name="request-lister")
        tasks = [listing, listening, ending]
        settle_collector()
        telemetry.start()
        dump_on_signal(telemetry.recorder)
        try:
            await run_gateway(
                node_app(state), state, self._http, ending,
                lambda: start.announce(state.ingest, _nobody_reads),
            )  # fmt: skip
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.to_thread(start.console.stop)
            await supervisor.stop()
            await state.ingest.close()
            await asyncio.to_thread(telemetry.stop)


def node_app(state: GatewayState) -> ASGIApp:
    """The HTTP surface of a node: all for operators, nothing that generates."""
    routes = [*ops_routes(state), *peer_routes(state)]
    paths = {route.path for route in routes}
    described = [one for one in DESCRIPTIONS if one.path.replace("{name}", "{name:path}") in paths]
    return framed_app(state, [*routes, openapi_route(state, described)], {})


async def _nobody_reads() -> bool:
    """No process of a node reads bodies: workers for that are not started."""
    return True
