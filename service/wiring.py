"""The composition root: the only module that sees every package."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from diagnosis.classifier import Diagnoser
from service.config import ConfigError, ModelRef, ServeConfig
from service.engine.inbox import SetStepCost
from service.engine.vocabulary import Vocabulary
from service.gateway.app import build_app
from service.gateway.bridge import Bridge
from service.gateway.engine_process import EngineProcess
from service.gateway.server import run_gateway
from service.gateway.state import GatewayState
from service.gateway.supervisor import EngineStartFailed, Supervisor
from service.gateway.vocabulary import vocabulary_of
from service.text.tokenizer import Tokenizer, load_tokenizer
from telemetry import prometheus
from telemetry.clock import Clock, MonotonicClock, unix_seconds
from telemetry.drain_rate import DrainRate
from telemetry.gc_watch import settle_collector
from telemetry.histograms import Histograms
from telemetry.machine import MachineWatch
from telemetry.otlp import SpanExporterThread, exporter_from_config
from telemetry.phase_fold import PhaseFold
from telemetry.pump import Pump
from telemetry.reasons import StartStage
from telemetry.recorder import Lane
from telemetry.roofline import Peaks
from telemetry.stages import Stages, StartReport, start_report
from telemetry.step_cost import StepCost, StepCostFold
from telemetry.timelines import TimelineStore
from telemetry.window import Snapshot
from telemetry.window_fold import Suppliers, WindowFold

Say = Callable[[str], None]
_SUPERVISOR_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """All folds and what feeds them; implements the gateway's `Views`."""

    clock: Clock
    pump: Pump
    phases: PhaseFold
    window: WindowFold
    histograms: Histograms
    timelines: TimelineStore
    diagnoser: Diagnoser
    exporter: SpanExporterThread | None
    machine: MachineWatch
    drain_rate: DrainRate

    def current(self) -> Snapshot:
        with self.pump.lock:
            self.pump.run_once()
            return self.window.snapshot(self.clock.now_ns())

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.current())

    def request(self, request_id: str) -> bytes | None:
        with self.pump.lock:
            self.pump.run_once()
            return self.timelines.get(request_id, self.phases, self.clock.now_ns())

    def diagnosis(self) -> bytes:
        with self.pump.lock:
            self.pump.run_once()
            return msgspec.json.encode(self.diagnoser.diagnosis(self.clock.now_ns()))

    def metrics(self) -> tuple[str, bytes]:
        with self.pump.lock:
            snapshot = self.current()
            more = self.machine.families()
            body = prometheus.render(snapshot, self.histograms, self.pump.costs, more)
        return prometheus.CONTENT_TYPE, body

    def host(self) -> bytes:
        with self.pump.lock:
            self.pump.run_once()
            return self.machine.host_json()

    def roofline(self) -> bytes:
        with self.pump.lock:
            self.pump.run_once()
            return self.machine.roofline_json()

    def start(self) -> None:
        self.machine.start(asyncio.get_running_loop())
        if self.exporter is not None:
            self.exporter.start()
        self.pump.start()

    def stop(self) -> None:
        """Fold what is left, then send what is left; bounded."""
        self.pump.stop()
        self.machine.stop()
        with self.pump.lock:
            self.phases.close()
        if self.exporter is not None:
            self.exporter.shutdown()


def build_telemetry(
    config: ServeConfig,
    clock: Clock,
    bridge: Bridge,
    lanes: tuple[Lane, ...],
    is_busy: Callable[[], bool],
) -> Telemetry:
    """Connect lanes, folds and listeners."""
    tracing = config.tracing
    exporter = exporter_from_config(tracing.endpoint, tracing.protocol, tracing.service_name, clock)
    machine = _machine(config, clock, bridge, is_busy)
    pump = Pump(clock, remote_lost=lambda: bridge.lost_facts)
    histograms, timelines, diagnoser = Histograms(), TimelineStore(), Diagnoser()
    window = WindowFold(
        histograms,
        Suppliers(
            ready=lambda: bridge.ready,
            facts_lost=lambda: pump.facts_lost,
            folds_detached=lambda: pump.detached,
            spans=lambda: _span_counts(exporter),
            gpu=lambda: machine.gpu.latest().as_dict(),
        ),
    )
    listeners = [timelines.on_timeline, window.on_timeline]
    if exporter is not None:
        listeners.append(exporter.on_timeline)
    phases = PhaseFold(listeners, [histograms.on_measured])
    for lane in lanes:
        pump.add_lane(lane)
    machine.attach(pump)
    pump.add_fold("phases", phases)
    pump.add_fold("window", window)
    pump.add_fold("diagnosis", diagnoser)
    drain_rate = DrainRate()
    pump.add_fold("drain_rate", drain_rate)
    if config.engine.itl_target_ms is not None:
        loop = asyncio.get_running_loop()
        costs = StepCostFold(lambda cost: _tell_cost(loop, bridge, cost))
        pump.add_fold("step_cost", costs)
    return Telemetry(
        clock, pump, phases, window, histograms, timelines, diagnoser, exporter, machine, drain_rate
    )


def _machine(
    config: ServeConfig, clock: Clock, bridge: Bridge, is_busy: Callable[[], bool]
) -> MachineWatch:
    def engine_pid() -> int | None:
        return bridge.started.pid if bridge.ready and bridge.started is not None else None

    gb, gflop = config.peaks.gb_per_s, config.peaks.gflop_per_s
    peaks = Peaks(
        bytes_per_s=None if gb is None else gb * 1e9,
        flop_per_s=None if gflop is None else gflop * 1e9,
        source="stated at the start" if gb or gflop else "not measured",
    )
    machine = MachineWatch(clock, engine_pid, is_busy, peaks, config.engine.watch_host)
    if machine.enabled:
        bridge.on_frame = machine.probe.alive
    return machine


def _tell_cost(loop: asyncio.AbstractEventLoop, bridge: Bridge, cost: StepCost) -> None:
    """From the pump's thread to the event loop, which owns the socket to the engine."""
    command = SetStepCost(
        base_ns=cost.base_ns,
        prefill_token_ns=cost.prefill_token_ns,
        decode_row_ns=cost.decode_row_ns,
        context_token_ns=cost.context_token_ns,
    )
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is served any more
        loop.call_soon_threadsafe(bridge.tell, command)


def _span_counts(exporter: SpanExporterThread | None) -> tuple[int, int]:
    if exporter is None:
        return (0, 0)
    return (exporter.stats.spans_exported, exporter.stats.spans_dropped)


def serve(
    config: ServeConfig, listener: socket.socket, engine: EngineProcess, stages: Stages, say: Say
) -> int:
    """Serve until a signal; returns the exit code. Raises ConfigError."""
    import uvloop

    logging.basicConfig(level=logging.WARNING, format="phasescope: %(message)s", stream=sys.stderr)
    clock = MonotonicClock()
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
    """The engine loads from the first moment; the tokenizer is read beside it."""
    gateway_lane, engine_lane = Lane(), Lane()
    bridge = Bridge(engine_lane, say)
    supervisor = Supervisor(bridge, config.engine, clock, gateway_lane, first)
    engine = asyncio.create_task(supervisor.run(), name="supervisor")
    try:
        tokenizer, vocabulary = await asyncio.to_thread(_read_tokenizer, config.engine.model)
        stages.end(StartStage.TOKENIZER)
        bridge.use_vocabulary(vocabulary)
        live: set[str] = set()
        lanes = (gateway_lane, engine_lane)
        telemetry = build_telemetry(config, clock, bridge, lanes, lambda: bool(live))
        start = Start(config, clock, bridge, telemetry, stages, listener.getsockname()[1], say)
        state = GatewayState(
            config=config.gateway,
            clock=clock,
            lane=gateway_lane,
            bridge=bridge,
            tokenizer=tokenizer,
            model=config.engine.model.name,
            sampling_defaults=config.engine.model.defaults,
            created_unix_s=unix_seconds(),
            views=telemetry,
            retry_after_s=lambda: telemetry.drain_rate.retry_after_s,
            start_report=lambda: start.report,
            live_request_ids=live,
        )
        settle_collector()
        telemetry.start()
        try:
            await run_gateway(build_app(state), state, listener, engine, start.announce)
        finally:
            await supervisor.stop()
            await asyncio.to_thread(telemetry.stop)
    finally:
        await end_engine(supervisor, engine)
    await engine


async def end_engine(supervisor: Supervisor, engine: asyncio.Task[None]) -> None:
    """Stop the supervisor and let its task `engine` see that for itself.

    The task learns of the process's end some milliseconds after `stop` does; cancelled in
    between it would turn an orderly end into an error.
    """
    await supervisor.stop()
    await asyncio.wait({engine}, timeout=_SUPERVISOR_END_S)
    engine.cancel()  # nothing when it is done


def _read_tokenizer(model: ModelRef) -> tuple[Tokenizer, Vocabulary]:
    tokenizer = load_tokenizer(model)
    return tokenizer, vocabulary_of(tokenizer)


class Start:
    """Says that the service is ready, once, and how long that took."""

    def __init__(
        self,
        config: ServeConfig,
        clock: Clock,
        bridge: Bridge,
        telemetry: Telemetry,
        stages: Stages,
        port: int,
        say: Say,
    ) -> None:
        self.report: StartReport | None = None
        self._config = config
        self._clock = clock
        self._bridge = bridge
        self._telemetry = telemetry
        self._stages = stages
        self._port = port
        self._say = say

    async def announce(self) -> None:
        started = await self._bridge.wait_ready()
        self.report = start_report(self._stages.done, started.stages, self._clock.now_ns())
        self._say(
            f"{started.model} ({started.dtype}) on {started.backend}, context "
            f"{started.max_model_tokens} tokens, {started.blocks_total} cache blocks of "
            f"{started.block_tokens} tokens"
        )
        if self._telemetry.exporter is not None:
            self._say(f"spans go to {self._telemetry.exporter.target}")
        address = f"http://{self._config.gateway.host}:{self._port}"
        self._say(f"ready in {self.report.line()} at {address}; try:")
        sys.stderr.write(curl_line(self._config, self._port) + "\n")
        sys.stderr.flush()


def curl_line(config: ServeConfig, port: int) -> str:
    """A first request that can be pasted."""
    key = " -H 'authorization: Bearer KEY'" if config.gateway.api_key else ""
    host = "127.0.0.1" if config.gateway.host in ("0.0.0.0", "::") else config.gateway.host
    body = (
        '{"messages": [{"role": "user", "content": "What is the capital of France?"}], '
        '"max_tokens": 64, "temperature": 0, "stream": true}'
    )
    return (
        f"curl -N http://{host}:{port}/v1/chat/completions{key} "
        f"-H 'content-type: application/json' -d '{body}'"
    )
