"""The composition root: the only module that sees every package."""

from __future__ import annotations

import asyncio
import contextlib
import gc
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
from service.metrics_wiring import at_once, build_metrics, build_pusher, push_counts
from service.text.tokenizer import Tokenizer, load_tokenizer
from telemetry.classes import ClassBook
from telemetry.clock import Clock, MonotonicClock, unix_seconds
from telemetry.drain_rate import DrainRate
from telemetry.gpu import GpuSampler
from telemetry.histograms import Histograms
from telemetry.metrics import Metrics
from telemetry.otlp import SpanExporterThread, exporter_from_config
from telemetry.otlp_push import MetricPusher
from telemetry.phase_fold import PhaseFold
from telemetry.phases import RequestTimeline
from telemetry.pump import Pump
from telemetry.reasons import StartStage
from telemetry.recorder import Lane
from telemetry.records import RequestEnded
from telemetry.slo import SloFold
from telemetry.slo_policy import policy_of
from telemetry.stages import Stages, StartReport, start_report
from telemetry.step_cost import StepCost, StepCostFold
from telemetry.timelines import TimelineStore
from telemetry.timings import RequestTimings, timings_of
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
    all_metrics: Metrics
    timelines: TimelineStore
    diagnoser: Diagnoser
    exporter: SpanExporterThread | None
    pusher: MetricPusher | None
    gpu: GpuSampler
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

    def metrics(self, accept: str, full: bool) -> tuple[str, bytes]:
        return self.all_metrics.exposition(accept, full)

    def histograms(self, window: str) -> bytes | None:
        return self.all_metrics.histogram_report(window)

    def slo(self) -> bytes:
        return self.all_metrics.slo_report()

    def timings(self, ended: RequestEnded) -> RequestTimings | None:
        with self.pump.lock:
            self.pump.run_once()
            timeline = self.phases.provisional(ended)
        return None if timeline is None else timings_of(timeline)

    def start(self) -> None:
        self.gpu.start()
        if self.exporter is not None:
            self.exporter.start()
        if self.pusher is not None:
            self.pusher.start()
        self.pump.start()

    def stop(self) -> None:
        """Fold what is left, then send what is left; bounded."""
        self.pump.stop()
        with self.pump.lock:
            self.phases.close()
        senders = (self.exporter, self.pusher)
        at_once([sender.shutdown for sender in senders if sender is not None])
        self.gpu.stop()


def build_telemetry(
    config: ServeConfig, clock: Clock, bridge: Bridge, lanes: tuple[Lane, ...]
) -> Telemetry:
    """Connect lanes, folds and listeners."""
    tracing = config.tracing
    exporter = exporter_from_config(tracing.endpoint, tracing.protocol, tracing.service_name, clock)
    gpu = GpuSampler()
    pump = Pump(clock, remote_lost=lambda: bridge.lost_facts)
    policy = policy_of(config.metrics.slo_file)
    histograms = Histograms(ClassBook(policy))
    timelines, diagnoser = TimelineStore(), Diagnoser()
    slo = SloFold(policy, clock.now_ns(), config.metrics.price_per_hour)
    window = WindowFold(
        histograms,
        Suppliers(
            ready=lambda: bridge.ready,
            facts_lost=lambda: pump.facts_lost,
            folds_detached=lambda: pump.detached,
            spans=lambda: _span_counts(exporter),
            gpu=lambda: gpu.latest().as_dict(),
            slo=slo.report,
            metric_pushes=lambda: push_counts(pusher),
        ),
    )
    all_metrics = build_metrics(
        config, clock, pump, window, histograms, slo, lambda timeline: _is_kept(exporter, timeline)
    )
    pusher = build_pusher(config, clock, all_metrics)
    listeners: list[Callable[[RequestTimeline], None]] = [
        timelines.on_timeline,
        window.on_timeline,
    ]
    if exporter is not None:
        listeners.append(exporter.on_timeline)
    listeners += all_metrics.listeners  # after whoever decides which traces are kept
    phases = PhaseFold(listeners, [histograms.on_measured])
    for lane in lanes:
        pump.add_lane(lane)
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
        clock=clock,
        pump=pump,
        phases=phases,
        window=window,
        all_metrics=all_metrics,
        timelines=timelines,
        diagnoser=diagnoser,
        exporter=exporter,
        pusher=pusher,
        gpu=gpu,
        drain_rate=drain_rate,
    )


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


def _is_kept(exporter: SpanExporterThread | None, timeline: RequestTimeline) -> bool:
    return exporter is not None and timeline.accepted.trace_sampled is not False


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
        telemetry = build_telemetry(config, clock, bridge, (gateway_lane, engine_lane))
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
            live_request_ids=set(),
        )
        gc.freeze()  # what is here lives as long as the process: it is never scanned
        gc.enable()
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
        if self._telemetry.pusher is not None:
            self._say(f"metrics go to {self._telemetry.pusher.target}")
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
