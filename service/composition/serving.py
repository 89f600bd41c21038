"""Runs a server from start to end: builds its parts, serves requests, ends the engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial

from service.composition.clients.gateways import Gateways
from service.composition.clients.state import clients_state
from service.composition.console import ConsoleProcess
from service.composition.logs import Say
from service.composition.recording import dump_on_signal, record_failed_start
from service.composition.telemetry import Telemetry
from service.composition.telemetry_wiring import ControlledEngine, TelemetryInputs, build_telemetry
from service.composition.thread_stacks import both_stacks
from service.config.settings import ANY_ADDRESS, ConfigError, ServeConfig
from service.engine.vocabulary import Vocabulary
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.engine_process import EngineProcess
from service.gateway.engine_client.live_requests import RequestLister
from service.gateway.engine_client.supervisor import EngineStartFailed, Supervisor
from service.gateway.engine_client.vocabulary import vocabulary_of
from service.gateway.generation.state import GatewayState
from service.gateway.http.listener import port_of
from service.gateway.ingest.pool import IngestPool
from service.gateway.processes.intake import EngineLane
from service.gateway.processes.pool import GatewayStartFailed
from service.gateway.processes.sockets import Sockets
from service.gateway.routes.app import build_app
from service.gateway.server import run_gateway
from service.gateway.server_state import LiveRequest
from service.text.tokenizer import Tokenizer, load_tokenizer
from telemetry.facts.clock import Clock, MonotonicClock, unix_seconds
from telemetry.facts.reasons import FactSource, StartStage
from telemetry.facts.recorder import Lane
from telemetry.facts.stages import Stages, StartReport, start_report
from telemetry.host.gc_watch import settle_collector
from telemetry.metrics.connections import ConnectionCounts
from telemetry.metrics.ingest_counts import IngestCounts

_SUPERVISOR_END_S = 10.0
# How long a computing thread keeps the interpreter lock while the event loop waits for it: with
# Python's default of 5 ms, two in a row would make a token 10 ms late.
SWITCH_S = 0.001


def serve(
    config: ServeConfig, sockets: Sockets, engine: EngineProcess, stages: Stages, say: Say
) -> int:
    """Serve until a signal; returns the exit code. Raises ConfigError."""
    import uvloop

    clock = MonotonicClock()
    sys.setswitchinterval(SWITCH_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, sockets, engine, stages, clock, say))
    except (EngineStartFailed, GatewayStartFailed) as error:
        raise ConfigError(str(error)) from error
    say("stopped")
    return 0


async def _serve(
    config: ServeConfig,
    sockets: Sockets,
    first: EngineProcess,
    stages: Stages,
    clock: Clock,
    say: Say,
) -> None:
    """The engine process loads the model; the tokenizer is read at the same time."""
    gateway_lane, engine_lane = Lane(source=FactSource.GATEWAY), EngineLane(clock)
    engine_client = _engine_client(config, engine_lane, say)
    supervisor = Supervisor(
        engine_client, config.engine, clock, gateway_lane, first,
        config.gateway.engine_deadline_s, sockets.engine,
    )  # fmt: skip
    engine = asyncio.create_task(supervisor.run(), name="supervisor")
    try:
        tokenizer, vocabulary = await asyncio.to_thread(read_tokenizer, config, clock)
        stages.end(StartStage.TOKENIZER)
        engine_client.use_vocabulary(vocabulary)
        live, handlers, port = set[str](), dict[str, LiveRequest](), port_of(sockets.public[0])
        connections, counts, model = ConnectionCounts(), IngestCounts(), config.engine.model
        gateways = Gateways(config, clock, sockets, engine_client, gateway_lane, engine_lane)
        observed = TelemetryInputs(
            engine=engine_client,
            model=lambda: model.name,
            # in this order: the gateway's facts of a sequence come before the engine's, or with
            lanes=(engine_lane, gateway_lane),
            is_busy=lambda: bool(live or handlers),
            stacks=lambda: both_stacks(supervisor.engine),
            more=lambda: [*gateways.families(connections, counts)],
            watch_host=config.engine.watch_host,
            more_lost=gateways.facts_lost,
        )
        controlled = ControlledEngine(config, engine_client)
        telemetry = build_telemetry(config, clock, observed, port, controlled)
        start = Start(config, clock, engine_client, telemetry, stages, port, say)
        state = clients_state(
            gateways.own_config,
            model,
            tokenizer,
            clock,
            counts,
            lane=gateway_lane,
            engine=engine_client,
            created_unix_s=unix_seconds(),
            views=telemetry,
            retry_after_s=lambda: telemetry.drain_rate.retry_after_s,
            start_report=lambda: start.report,
            live_request_ids=live,
            handlers=handlers,
            recorder=telemetry.recorder,
            connections=connections,
            slo=telemetry.slo_policy,
            adapters=config.engine,
        )
        await _run(state, telemetry, supervisor, gateways, engine, start)
    finally:
        await end_engine(supervisor, engine)
    await engine


def _engine_client(config: ServeConfig, lane: EngineLane, say: Say) -> EngineClient:
    """It knows the adapters that the engine will have."""
    client = EngineClient(lane, say)
    client.adapters.await_start(config.engine.named_loras)
    return client


async def _run(
    state: GatewayState,
    telemetry: Telemetry,
    supervisor: Supervisor,
    gateways: Gateways,
    engine: asyncio.Task[None],
    start: Start,
) -> None:
    """Serve requests until a signal, then end the engine before the telemetry that reads it."""
    settle = gateways.ended_while_settling if gateways.are_many else None
    lister = RequestLister(state.handlers, state.lane, state.clock, settle)
    listing = asyncio.create_task(lister.run(), name="request-lister")
    settle_collector()
    telemetry.start()
    dump_on_signal(telemetry.recorder)
    try:
        app, ending = gateways.start(build_app(state), state, telemetry, engine)
        announce = partial(start.announce, state.ingest, gateways.wait_ready)
        await run_gateway(app, state, gateways.own_listener, ending, announce)
    finally:
        listing.cancel()
        await asyncio.to_thread(start.console.stop)
        await gateways.stop()
        await supervisor.stop()
        await state.ingest.close()
        await asyncio.to_thread(telemetry.stop)


async def end_engine(supervisor: Supervisor, engine: asyncio.Task[None]) -> None:
    """Stop the supervisor, and wait until its task `engine` has ended by itself.

    The task sees the process end some milliseconds after `stop` returns. Cancelled in between, it
    would report an orderly end as an error.
    """
    await supervisor.stop()
    await asyncio.wait({engine}, timeout=_SUPERVISOR_END_S)
    engine.cancel()  # nothing when it is done


def read_tokenizer(config: ServeConfig, clock: Clock) -> tuple[Tokenizer, Vocabulary]:
    """Raises ConfigError."""
    try:
        tokenizer = load_tokenizer(config.engine.model)
        return tokenizer, vocabulary_of(tokenizer)
    except ConfigError as error:
        record_failed_start(config.recorder, clock, str(error))
        raise


class Start:
    """Announces once that the service is ready, and how long the start took."""

    def __init__(
        self,
        config: ServeConfig,
        clock: Clock,
        engine_client: EngineClient,
        telemetry: Telemetry,
        stages: Stages,
        port: int,
        say: Say,
        more: str = "",
    ) -> None:
        """`more` is said with the address."""
        self._more = more
        self.report: StartReport | None = None
        self._config = config
        self._clock = clock
        self._engine_client = engine_client
        self._telemetry = telemetry
        self._stages = stages
        self.console = ConsoleProcess(config, port)
        self._port = port
        self._say = say

    async def announce(
        self, ingest: IngestPool, gateways_ready: Callable[[], Awaitable[bool]]
    ) -> None:
        """Say that the service is ready, once it is; `gateways_ready` is whether another process
        reads bodies."""
        started = await self._engine_client.wait_ready()
        others_read = await gateways_ready()
        self.report = start_report(self._stages.done, started.stages, self._clock.now_ns())
        if not others_read:
            ingest.warm_up()  # not earlier: it would take cores from the engine's start
        self._say(
            f"{started.model} ({started.dtype}) on {started.backend}, context "
            f"{started.max_model_tokens} tokens, {started.blocks_total} cache blocks of "
            f"{started.block_tokens} tokens"
        )
        exporter = self._telemetry.exporter
        if exporter is not None:
            self._say(f"spans go to {exporter.target}, tracing {exporter.sampler.policy.mode}")
        if self._telemetry.pusher is not None:
            self._say(f"metrics go to {self._telemetry.pusher.target}")
        address = address_of(self._config, self._port)
        as_text = self._config.logs.format == "text" and not self._more
        more = f"; {self._more}" if self._more else "; try:" if as_text else ""
        self._say(f"ready in {self.report.line()} at {address}{more}")
        if as_text:
            sys.stderr.write(curl_line(self._config, self._port) + "\n")
            sys.stderr.flush()
        try:
            self.console.start()
        except OSError as error:
            self._say(f"the console does not start: {error}")


def address_of(config: ServeConfig, port: int) -> str:
    """The address at which clients reach the server."""
    http = config.gateway.http
    if http.uds is not None:
        return f"unix:{http.uds}"
    return f"{'https' if http.is_tls else 'http'}://{config.gateway.host}:{port}"


def curl_line(config: ServeConfig, port: int) -> str:
    """A curl command to paste: a first request."""
    http = config.gateway.http
    scheme = "https" if http.is_tls else "http"
    key = " -H 'authorization: Bearer KEY'" if config.gateway.api_key else ""
    host = "127.0.0.1" if config.gateway.host in ANY_ADDRESS else config.gateway.host
    body = (
        '{"messages": [{"role": "user", "content": "What is the capital of France?"}], '
        '"max_tokens": 64, "temperature": 0, "stream": true}'
    )
    target = f"{scheme}://{host}:{port}"
    if http.uds is not None:
        target = f"--unix-socket {http.uds} {scheme}://localhost"
    return (
        f"curl -N {target}/v1/chat/completions{key} -H 'content-type: application/json' -d '{body}'"
    )
