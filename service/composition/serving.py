"""Runs a server from start to end: builds its parts, serves requests, ends the engine."""

from __future__ import annotations

import asyncio
import socket
import sys

from service.composition.console import ConsoleProcess
from service.composition.logs import Say
from service.composition.recording import dump_on_signal, record_failed_start
from service.composition.telemetry import Telemetry
from service.composition.telemetry_wiring import Observed, Steered, build_telemetry
from service.composition.thread_stacks import both_stacks
from service.config.settings import ANY_ADDRESS, ConfigError, ServeConfig
from service.engine.vocabulary import Vocabulary
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.engine_process import EngineProcess
from service.gateway.engine_client.live_requests import RequestLister
from service.gateway.engine_client.supervisor import EngineStartFailed, Supervisor
from service.gateway.engine_client.vocabulary import vocabulary_of
from service.gateway.generation.state import GatewayState
from service.gateway.generation.tool_results import CallTable
from service.gateway.http.listener import port_of
from service.gateway.ingest.pool import IngestPool
from service.gateway.ingest.prompting import BodyReader
from service.gateway.routes.app import build_app
from service.gateway.server import run_gateway
from service.text.reasoning import reasoning_format
from service.text.tokenizer import Tokenizer, load_tokenizer
from telemetry.facts.clock import Clock, MonotonicClock, unix_seconds
from telemetry.facts.reasons import FactSource, StartStage
from telemetry.facts.recorder import Lane
from telemetry.facts.stages import Stages, StartReport, start_report
from telemetry.host.gc_watch import settle_collector
from telemetry.metrics.connections import ConnectionCounts, connection_families
from telemetry.metrics.ingest_counts import IngestCounts, ingest_families

_SUPERVISOR_END_S = 10.0
# How long a computing thread keeps the interpreter lock while the event loop waits for it: with
# Python's default of 5 ms, two in a row would make a token 10 ms late.
_SWITCH_S = 0.001


def serve(
    config: ServeConfig, listener: socket.socket, engine: EngineProcess, stages: Stages, say: Say
) -> int:
    """Serve until a signal; returns the exit code. Raises ConfigError."""
    import uvloop

    clock = MonotonicClock()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, listener, engine, stages, clock, say))
    except EngineStartFailed as error:
        raise ConfigError(str(error)) from error
    say("stopped")
    return 0


async def _serve(
    config: ServeConfig,
    listener: socket.socket,
    first: EngineProcess,
    stages: Stages,
    clock: Clock,
    say: Say,
) -> None:
    """The engine process loads the model; the tokenizer is read at the same time."""
    dump_on_signal(None)  # until there is a recorder
    gateway_lane = Lane(source=FactSource.GATEWAY)
    engine_lane = Lane(source=FactSource.ENGINE)
    engine_client = EngineClient(engine_lane, say)
    deadline_s = config.gateway.engine_deadline_s
    supervisor = Supervisor(engine_client, config.engine, clock, gateway_lane, first, deadline_s)
    engine = asyncio.create_task(supervisor.run(), name="supervisor")
    try:
        tokenizer, vocabulary = await asyncio.to_thread(_read_tokenizer, config, clock)
        stages.end(StartStage.TOKENIZER)
        engine_client.use_vocabulary(vocabulary)
        live: set[str] = set()
        port, connections, counts = port_of(listener), ConnectionCounts(), IngestCounts()
        model = config.engine.model
        observed = Observed(
            engine=engine_client,
            model=lambda: model.name,
            # in this order: the gateway's facts of a sequence come before the engine's, or with
            lanes=(engine_lane, gateway_lane),
            is_busy=lambda: bool(live),
            stacks=lambda: both_stacks(supervisor.engine),
            more=lambda: [*connection_families(connections), *ingest_families(counts)],
            watch_host=config.engine.watch_host,
        )
        telemetry = build_telemetry(config, clock, observed, port, Steered(config, engine_client))
        reasoning = reasoning_format(tokenizer, model.reasoning_format)
        reader = BodyReader(
            tokenizer, model.name, model.defaults, clock, reasoning, model.tool_format
        )
        ingest = IngestPool(reader, model, config.gateway.ingest_workers, counts)
        console = ConsoleProcess(config, port)
        start = Start(config, clock, engine_client, telemetry, ingest, stages, console, port, say)
        state = GatewayState(
            config=config.gateway,
            clock=clock,
            lane=gateway_lane,
            engine=engine_client,
            tokenizer=tokenizer,
            ingest=ingest,
            model=model.name,
            sampling_defaults=model.defaults,
            created_unix_s=unix_seconds(),
            views=telemetry,
            retry_after_s=lambda: telemetry.drain_rate.retry_after_s,
            start_report=lambda: start.report,
            live_request_ids=live,
            recorder=telemetry.recorder,
            connections=connections,
            slo=telemetry.slo_policy,
            reasoning=reasoning,
            calls=CallTable(clock),
        )
        await _run(state, telemetry, ingest, supervisor, listener, engine, start)
    finally:
        await end_engine(supervisor, engine)
    await engine


async def _run(
    state: GatewayState,
    telemetry: Telemetry,
    ingest: IngestPool,
    supervisor: Supervisor,
    listener: socket.socket,
    engine: asyncio.Task[None],
    start: Start,
) -> None:
    """Serve requests until a signal, then end the engine before the telemetry that reads it."""
    lister = RequestLister(state.handlers, state.lane, state.clock)
    listing = asyncio.create_task(lister.run(), name="request-lister")
    settle_collector()
    telemetry.start()
    dump_on_signal(telemetry.recorder)
    try:
        await run_gateway(build_app(state), state, listener, engine, start.announce)
    finally:
        listing.cancel()
        await asyncio.to_thread(start.console.stop)
        await supervisor.stop()
        await ingest.close()
        await asyncio.to_thread(telemetry.stop)


async def end_engine(supervisor: Supervisor, engine: asyncio.Task[None]) -> None:
    """Stop the supervisor, and wait until its task `engine` has ended by itself.

    The task sees the process end some milliseconds after `stop` returns. Cancelled in between, it
    would report an orderly end as an error.
    """
    await supervisor.stop()
    await asyncio.wait({engine}, timeout=_SUPERVISOR_END_S)
    engine.cancel()  # nothing when it is done


def _read_tokenizer(config: ServeConfig, clock: Clock) -> tuple[Tokenizer, Vocabulary]:
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
        ingest: IngestPool,
        stages: Stages,
        console: ConsoleProcess,
        port: int,
        say: Say,
    ) -> None:
        self.report: StartReport | None = None
        self._config = config
        self._clock = clock
        self._engine_client = engine_client
        self._telemetry = telemetry
        self._ingest = ingest
        self._stages = stages
        self.console = console
        self._port = port
        self._say = say

    async def announce(self) -> None:
        started = await self._engine_client.wait_ready()
        self.report = start_report(self._stages.done, started.stages, self._clock.now_ns())
        self._ingest.warm_up()  # not earlier: it would take cores from the engine's start
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
        as_text = self._config.logs.format == "text"
        self._say(f"ready in {self.report.line()} at {address}{'; try:' if as_text else ''}")
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
