"""Puts together all folds, what feeds them and what asks them; part of the composition root."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from diagnosis.detection.reference import read_baseline
from diagnosis.verdicts.alerts import finding_families
from diagnosis.verdicts.classifier import Diagnoser
from service.composition.metrics_wiring import at_once, build_metrics, build_pusher, push_counts
from service.composition.recording import build_recorder
from service.composition.root_wiring import build_root_worker, opinion
from service.composition.root_worker import NOTHING, RootWorker
from service.config.settings import ANY_ADDRESS, ConfigError, ServeConfig
from service.engine.inbox import SetStepCost
from service.gateway.engine_client.client import EngineClient
from telemetry.costs.step_cost import StepCost, StepCostFold
from telemetry.facts.base import RecorderStats, SpanEvents
from telemetry.facts.clock import Clock
from telemetry.facts.isolation import Isolation
from telemetry.facts.pump import Pump
from telemetry.facts.recorder import Lane
from telemetry.facts.records import RequestEnded
from telemetry.host.machine import MachineWatch
from telemetry.host.roofline import Peaks
from telemetry.journal.dumps import DumpReason
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.ledger.builder import LedgerBuilder
from telemetry.metrics.connections import ConnectionCounts, connection_families
from telemetry.metrics.exposition import Metrics
from telemetry.metrics.harm_metrics import harm_families
from telemetry.metrics.ingest_counts import IngestCounts, ingest_families
from telemetry.metrics.machine_metrics import heartbeat_families, machine_families
from telemetry.metrics.otlp_push import MetricPusher
from telemetry.requests.classes import ClassBook
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import SloPolicy, policy_of
from telemetry.requests.timelines import TimelineStore
from telemetry.requests.timings import RequestTimings, timings_of
from telemetry.stats.drain_rate import DrainRate
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import BurnWatch, SloFold, judge
from telemetry.stats.slo_report import Verdict
from telemetry.stats.window import Snapshot
from telemetry.stats.window_fold import Suppliers, WindowFold
from telemetry.traces.otlp import SpanExporterThread
from telemetry.traces.otlp_config import exporter_from_config
from telemetry.traces.sampling import SamplingPolicy, TailSampler, TracingMode
from telemetry.traces.tracing_view import TracingView


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
    machine: MachineWatch
    drain_rate: DrainRate
    ledger_builder: LedgerBuilder
    recorder: FlightRecorder | None
    root_worker: RootWorker | None

    def current(self) -> Snapshot:
        with self.pump.caught_up():
            return self.window.snapshot(self.clock.now_ns())

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.current())

    def request(self, request_id: str) -> bytes | None:
        with self.pump.caught_up():
            return self.timelines.get(request_id, self.phases, self.clock.now_ns())

    def harm(self) -> bytes:
        with self.pump.caught_up():
            return msgspec.json.encode(self.ledger_builder.harm.report())

    def diagnosis(self) -> bytes:
        with self.pump.caught_up():
            return msgspec.json.encode(opinion(self.pump, self.diagnoser))

    def root(self) -> bytes:
        return NOTHING if self.root_worker is None else self.root_worker.answer

    def metrics(self, accept: str, full: bool) -> tuple[str, bytes]:
        return self.all_metrics.exposition(accept, full)

    def histograms(self, window: str) -> bytes | None:
        return self.all_metrics.histogram_report(window)

    def slo(self) -> bytes:
        return self.all_metrics.slo_report()

    def timings(self, ended: RequestEnded) -> RequestTimings | None:
        with self.pump.caught_up():
            timeline = self.phases.provisional(ended)
        return None if timeline is None else timings_of(timeline)

    def host(self) -> bytes:
        with self.pump.caught_up():
            return self.machine.host_json()

    def roofline(self) -> bytes:
        with self.pump.caught_up():
            return self.machine.roofline_json()

    def tracing(self) -> bytes:
        return msgspec.json.encode(_tracing_view(self.exporter))

    def set_tracing(self, mode: TracingMode | None, rate: float | None) -> bool:
        if self.exporter is None:
            return False
        sampler = self.exporter.sampler
        old = sampler.policy
        sampler.policy = SamplingPolicy(mode or old.mode, old.rate if rate is None else rate)
        return True

    def is_recording(self) -> bool:
        return self.pump.recording

    def set_recording(self, enabled: bool) -> None:
        self.pump.recording = enabled

    def start(self) -> None:
        self.machine.start(asyncio.get_running_loop())
        if self.exporter is not None:
            self.exporter.start()
        if self.pusher is not None:
            self.pusher.start()
        self.pump.start()
        if self.recorder is not None:
            self.recorder.start()
        if self.root_worker is not None:
            self.root_worker.start()

    def stop(self) -> None:
        """Fold what is left, then send what is left; bounded."""
        if self.root_worker is not None:
            self.root_worker.stop()
        self.pump.stop()
        self.machine.stop()
        with self.pump.lock:
            self.phases.close()
        if self.recorder is not None:
            self.recorder.stop()
        senders = (self.exporter, self.pusher)
        at_once([sender.shutdown for sender in senders if sender is not None])


def build_telemetry(
    config: ServeConfig,
    clock: Clock,
    engine_client: EngineClient,
    lanes: tuple[Lane, ...],
    port: int,
    is_busy: Callable[[], bool],
    connections: ConnectionCounts,
    ingest: IngestCounts,
) -> Telemetry:
    """Connect lanes, folds and listeners."""
    policy = policy_of(config.metrics.slo_file)
    ledger_builder = LedgerBuilder(lambda slo_class: policy.of(slo_class).itl_ns)
    pump = Pump(clock, remote_lost=lambda: engine_client.lost_facts)
    machine = _machine(config, clock, engine_client, is_busy, pump.isolation)
    recorder = build_recorder(config.recorder, clock, pump)
    histograms = Histograms(ClassBook(policy))
    timelines, baseline = (
        TimelineStore(capacity_bytes=config.recorder.timeline_bytes),
        config.metrics.baseline,
    )
    diagnoser = Diagnoser(None if baseline is None else read_baseline(Path(baseline)))
    is_culprit, span_events = ledger_builder.harm.is_culprit, diagnoser.log.between
    exporter = _build_exporter(config, clock, port, policy, is_culprit, span_events)
    slo = SloFold(policy, clock.now_ns(), config.metrics.price_per_hour)
    window = WindowFold(
        histograms,
        Suppliers(
            ready=lambda: engine_client.ready,
            facts_lost=lambda: pump.facts_lost,
            facts_waiting=lambda: pump.facts_waiting,
            folds_detached=lambda: pump.detached,
            fold_errors=lambda: pump.isolation.errors,
            gpu=lambda: machine.gpu.latest().as_dict(),
            recorder=lambda: _recorder_stats(recorder),
            tracing=lambda: _tracing_view(exporter),
            recording=lambda: pump.recording,
            slo=slo.report,
            metric_pushes=lambda: push_counts(pusher),
        ),
    )
    root_worker = build_root_worker(config, clock, pump, diagnoser, recorder)
    all_metrics = build_metrics(
        config,
        clock,
        pump,
        window,
        histograms,
        slo,
        kept=lambda timeline: exporter is not None and timeline.accepted.trace_id in exporter.kept,
        more=lambda: [
            *machine_families(machine),
            *heartbeat_families(engine_client.health.heartbeat_age_ns, engine_client.health.hangs),
            *harm_families(ledger_builder.harm),
            *finding_families(opinion(pump, diagnoser)),
            *(() if root_worker is None else root_worker.failures.families()),
            *connection_families(connections),
            *ingest_families(ingest),
        ],
    )
    pusher = build_pusher(config, clock, all_metrics)
    listeners: list[Callable[[RequestTimeline], None]] = [
        timelines.on_timeline,
        window.on_timeline,
    ]
    if exporter is not None:
        listeners.append(exporter.on_timeline)
    listeners += all_metrics.listeners  # after whoever decides which traces are kept
    if recorder is not None:
        dump = partial(recorder.request_dump, DumpReason.SLO_BURN)
        listeners.append(BurnWatch(slo, dump).on_timeline)
    phases = PhaseFold(
        listeners, [histograms.on_measured], ledger_builder, isolation=pump.isolation
    )
    for lane in lanes:
        pump.add_lane(lane)
    if exporter is not None:
        pump.add_lane(exporter.lane)
    machine.attach(pump)
    pump.add_fold("phases", phases)
    pump.add_fold("window", window)
    pump.add_fold("diagnosis", diagnoser)
    drain_rate = DrainRate()
    pump.add_fold("drain_rate", drain_rate)
    if config.engine.itl_target_ms is not None:
        loop = asyncio.get_running_loop()
        costs = StepCostFold(lambda cost: _tell_cost(loop, engine_client, cost))
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
        machine=machine,
        drain_rate=drain_rate,
        ledger_builder=ledger_builder,
        recorder=recorder,
        root_worker=root_worker,
    )


def _machine(
    config: ServeConfig,
    clock: Clock,
    engine_client: EngineClient,
    is_busy: Callable[[], bool],
    isolation: Isolation,
) -> MachineWatch:
    def engine_pid() -> int | None:
        return (
            engine_client.started.pid
            if engine_client.has_engine and engine_client.started is not None
            else None
        )

    gb, gflop = config.peaks.gb_per_s, config.peaks.gflop_per_s
    peaks = Peaks(
        bytes_per_s=None if gb is None else gb * 1e9,
        flop_per_s=None if gflop is None else gflop * 1e9,
        source="stated at the start" if gb or gflop else "not measured",
    )
    machine = MachineWatch(clock, engine_pid, is_busy, peaks, config.engine.watch_host)
    if machine.enabled:
        engine_client.on_frame = isolation.guard("loop_probe", machine.probe.alive)
    return machine


def _tell_cost(
    loop: asyncio.AbstractEventLoop, engine_client: EngineClient, cost: StepCost
) -> None:
    """From the pump's thread to the event loop, which owns the socket to the engine."""
    command = SetStepCost(
        base_ns=cost.base_ns,
        prefill_token_ns=cost.prefill_token_ns,
        decode_row_ns=cost.decode_row_ns,
        context_token_ns=cost.context_token_ns,
    )
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is served any more
        loop.call_soon_threadsafe(engine_client.send, command)


def _recorder_stats(recorder: FlightRecorder | None) -> RecorderStats | None:
    return None if recorder is None else recorder.stats()


def _build_exporter(
    config: ServeConfig,
    clock: Clock,
    port: int,
    slo: SloPolicy,
    is_culprit: Callable[[str], bool],
    span_events: SpanEvents,
) -> SpanExporterThread | None:
    """What exports spans, if they are to go anywhere. Raises ConfigError."""

    def missed(timeline: RequestTimeline) -> bool:
        verdict = judge(timeline, slo.of(timeline.accepted.slo_class))
        return verdict in (Verdict.LATE_FIRST_TOKEN, Verdict.SLOW_TOKENS)

    tracing = config.tracing
    host = config.gateway.http.uds or config.gateway.host
    address = socket.gethostname() if host in ANY_ADDRESS else host
    policy = SamplingPolicy(TracingMode(tracing.mode), tracing.rate)
    try:
        return exporter_from_config(
            tracing.endpoint,
            tracing.protocol,
            tracing.service_name,
            clock,
            TailSampler(policy, is_culprit, missed),
            (address, port or None),
            span_events,
        )
    except OSError as error:
        raise ConfigError(f"the OTLP certificate or key cannot be read: {error}") from error


def _tracing_view(exporter: SpanExporterThread | None) -> TracingView:
    return TracingView() if exporter is None else exporter.view()
