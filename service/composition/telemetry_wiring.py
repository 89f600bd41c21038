"""Builds and connects all folds, their inputs and their readers; part of the composition root."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from diagnosis.verdicts.alerts import finding_families
from diagnosis.verdicts.baseline_file import read_baseline
from diagnosis.verdicts.classifier import Diagnoser
from service.composition.autopilot_wiring import build_autopilot, why_off
from service.composition.autopilot_worker import AutopilotWorker
from service.composition.metrics_wiring import build_metrics, build_pusher, push_counts
from service.composition.recording import build_recorder
from service.composition.report_wiring import build_report_worker
from service.composition.report_worker import ReportWorker, report_families
from service.composition.root_cause_wiring import build_root_cause_worker, current_diagnosis
from service.composition.root_cause_worker import RootCauseWorker
from service.composition.telemetry import Telemetry
from service.composition.tracing_wiring import build_exporter, tracing_view
from service.config.settings import ObserverConfig, ServeConfig
from service.engine.inbox import SetStepCost
from service.gateway.engine_client.client import EngineClient
from service.gateway.server_state import ObservedEngine
from service.process.linear_algebra import limit_linear_algebra
from telemetry.costs.step_cost import StepCost, StepCostFold
from telemetry.facts.base import SpanEvents
from telemetry.facts.clock import Clock
from telemetry.facts.recorder import Lane
from telemetry.facts.version import installed_version
from telemetry.host.machine import MachineWatch
from telemetry.host.proc import worker_of
from telemetry.host.roofline import Peaks
from telemetry.journal.dumps import DumpReason
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.ledger.builder import LedgerBuilder
from telemetry.metrics.clock_metrics import clock_families
from telemetry.metrics.exemplars import Kept
from telemetry.metrics.exposition import Metrics, MoreFamilies
from telemetry.metrics.harm_metrics import harm_families
from telemetry.metrics.machine_metrics import heartbeat_families, machine_families
from telemetry.metrics.otlp_push import MetricPusher
from telemetry.pump.isolation import Isolation
from telemetry.pump.pump import Pump
from telemetry.requests.classes import ClassBook
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.request_list import RequestList
from telemetry.requests.slo_policy import SloPolicy, policy_of
from telemetry.requests.timelines import TimelineStore
from telemetry.stats.drain_rate import DrainRate
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import BurnWatch, SloFold, judged_by
from telemetry.stats.window_fold import Suppliers, WindowFold
from telemetry.traces.autopilot_events import AutopilotEvents
from telemetry.traces.limit_events import LimitEvents
from telemetry.traces.otlp import SpanExporterThread

Workers = tuple[RootCauseWorker | None, AutopilotWorker | None, ReportWorker | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryInputs:
    """An engine, and what else is known of it. `model` names what it serves, `is_busy` says whether
    requests are being served, `stacks` are those of all threads, `more` are further metrics,
    `more_lost` counts facts that other processes have lost; `told` are those that hear of each
    ended request."""

    engine: ObservedEngine
    model: Callable[[], str]
    lanes: tuple[Lane, ...]
    is_busy: Callable[[], bool]
    stacks: Callable[[], str]
    more: MoreFamilies
    watch_host: bool
    more_lost: Callable[[], int] = lambda: 0
    told: tuple[Callable[[RequestTimeline], None], ...] = ()


@dataclass(frozen=True, slots=True)
class ControlledEngine:
    """An engine that takes commands: the cost of its steps, and limits from the autopilot."""

    config: ServeConfig
    client: EngineClient


def build_telemetry(
    config: ObserverConfig,
    clock: Clock,
    observed: TelemetryInputs,
    port: int,
    steered: ControlledEngine | None,
    why_not_steered: str = "",
) -> Telemetry:
    """Connect lanes, folds and listeners. To be called on the event loop. An engine that is not
    steered is not replayed either: its scheduler is not ours; `why_not_steered` says so. Raises
    ConfigError."""
    engine, policy = observed.engine, policy_of(config.metrics.slo_file)
    ledgers = LedgerBuilder(lambda slo_class: policy.of(slo_class).itl_ns)
    pump = Pump(clock, remote_lost=lambda: engine.lost_facts + observed.more_lost())
    machine = _build_machine(config, clock, observed, pump.isolation)
    recorder = build_recorder(config, clock, pump, policy)
    histograms = Histograms(ClassBook(policy))
    diagnoser = _build_diagnoser(config.metrics.baseline, policy)
    parts = (config, clock, pump, diagnoser, recorder)
    workers = _build_workers(parts, observed, steered, policy)
    root_cause_worker, pilot, reports = workers
    events = (LimitEvents(), AutopilotEvents())
    is_culprit, span_events = ledgers.harm.is_culprit, _span_events(diagnoser, *events)
    exporter = build_exporter(config, clock, port, policy, is_culprit, span_events)
    slo = SloFold(policy, clock.now_ns(), config.metrics.price_per_hour)
    suppliers = _suppliers(engine, pump, machine, recorder, exporter, slo, lambda: pusher, pilot)
    window = WindowFold(histograms, suppliers)
    more = _more_families(observed, pump, machine, ledgers, lambda: phases, diagnoser, workers)
    kept, model = _kept(exporter), observed.model
    all_metrics = build_metrics(config, model, clock, pump, window, histograms, slo, kept, more)
    pusher = build_pusher(config, clock, all_metrics)
    timelines = _build_timelines(config, policy)
    request_list = RequestList(judged_by(policy), clock.now_ns())
    listeners = _listeners(observed.told, timelines, window, exporter, all_metrics, recorder, slo)
    listeners += [one.on_timeline for one in (request_list, pilot) if one is not None]
    phases = PhaseFold(listeners, [histograms.on_measured], ledgers, isolation=pump.isolation)
    telemetry = Telemetry(
        clock=clock,
        pump=pump,
        phases=phases,
        window=window,
        all_metrics=all_metrics,
        timelines=timelines,
        request_list=request_list,
        diagnoser=diagnoser,
        exporter=exporter,
        pusher=pusher,
        machine=machine,
        drain_rate=DrainRate(),
        ledger_builder=ledgers,
        recorder=recorder,
        root_cause_worker=root_cause_worker,
        report_worker=reports,
        slo_policy=policy,
        autopilot_worker=pilot,
        why_no_autopilot=why_not_steered if steered is None else why_off(steered.config),
        why_no_root=why_not_steered,
    )
    _connect(telemetry, observed.lanes, events, steered)
    return telemetry


def _build_workers(
    parts: tuple[ObserverConfig, Clock, Pump, Diagnoser, FlightRecorder | None],
    observed: TelemetryInputs,
    steered: ControlledEngine | None,
    policy: SloPolicy,
) -> Workers:
    """What explains a fault by replay, what sets limits, what writes reports."""
    config, clock, pump, diagnoser, recorder = parts
    reports = build_report_worker(*parts, observed.stacks, replays=steered is not None)
    if steered is None:
        return None, None, reports
    root_cause_worker = build_root_cause_worker(config, clock, pump, diagnoser, recorder)
    pilot = build_autopilot(
        steered.config, clock, pump, diagnoser, recorder, steered.client, policy
    )
    return root_cause_worker, pilot, reports


def _kept(exporter: SpanExporterThread | None) -> Kept:
    """Whether the trace of an ended request was kept."""
    return lambda timeline: exporter is not None and timeline.accepted.trace_id in exporter.kept


def _build_timelines(config: ObserverConfig, policy: SloPolicy) -> TimelineStore:
    kept_bytes = config.recorder.timeline_bytes
    return TimelineStore(capacity_bytes=kept_bytes, judged=judged_by(policy))


def _build_diagnoser(baseline: str | None, policy: SloPolicy) -> Diagnoser:
    return Diagnoser(None if baseline is None else read_baseline(Path(baseline)), policy)


def _span_events(
    diagnoser: Diagnoser, limits: LimitEvents, autopilot: AutopilotEvents
) -> SpanEvents:
    sources = (diagnoser.log.between, limits.between, autopilot.between)
    return lambda begin_ns, end_ns: sorted(
        (event for between in sources for event in between(begin_ns, end_ns)),
        key=lambda event: event.at_ns,
    )


def _suppliers(
    engine: ObservedEngine,
    pump: Pump,
    machine: MachineWatch,
    recorder: FlightRecorder | None,
    exporter: SpanExporterThread | None,
    slo: SloFold,
    pusher: Callable[[], MetricPusher | None],
    pilot: AutopilotWorker | None,
) -> Suppliers:
    """What a snapshot reads from other owners; `pusher` is built later."""
    return Suppliers(
        ready=lambda: engine.ready,
        facts_lost=lambda: pump.facts_lost,
        facts_waiting=lambda: pump.facts_waiting,
        folds_detached=lambda: pump.detached,
        fold_errors=lambda: pump.isolation.errors,
        gpu=lambda: machine.gpu.latest().as_dict(),
        recorder=lambda: None if recorder is None else recorder.stats(),
        tracing=lambda: tracing_view(exporter),
        recording=lambda: pump.recording,
        slo=slo.report,
        autopilot=lambda: None if pilot is None else pilot.line(),
        metric_pushes=lambda: push_counts(pusher()),
        version=installed_version(),
    )


def _more_families(
    observed: TelemetryInputs,
    pump: Pump,
    machine: MachineWatch,
    ledger_builder: LedgerBuilder,
    phases: Callable[[], PhaseFold],
    diagnoser: Diagnoser,
    workers: Workers,
) -> MoreFamilies:
    """Metrics of other owners than the folds."""
    root_cause_worker, pilot, reports = workers
    health = observed.engine.health
    return lambda: [
        *machine_families(machine),
        *heartbeat_families(health.heartbeat_age_ns, health.hangs),
        *harm_families(ledger_builder.harm),
        *clock_families(phases().clocks),
        *finding_families(current_diagnosis(pump, diagnoser)),
        *(() if root_cause_worker is None else root_cause_worker.failures.families()),
        *(() if pilot is None else pilot.families()),
        *report_families(reports),
        *observed.more(),
    ]


def _listeners(
    told: tuple[Callable[[RequestTimeline], None], ...],
    timelines: TimelineStore,
    window: WindowFold,
    exporter: SpanExporterThread | None,
    metrics: Metrics,
    recorder: FlightRecorder | None,
    slo: SloFold,
) -> list[Callable[[RequestTimeline], None]]:
    """Listeners to the timeline of each ended request, in the order in which they are called."""
    found: list[Callable[[RequestTimeline], None]] = [timelines.on_timeline, window.on_timeline]
    found += told
    if exporter is not None:
        found.append(exporter.on_timeline)
    found += metrics.listeners  # after the exporter, which decides which traces are kept
    if recorder is not None:
        dump = partial(recorder.request_dump, DumpReason.SLO_BURN)
        found.append(BurnWatch(slo, dump).on_timeline)
    return found


def _connect(
    telemetry: Telemetry,
    lanes: tuple[Lane, ...],
    events: tuple[LimitEvents, AutopilotEvents],
    steered: ControlledEngine | None,
) -> None:
    """Add lanes and folds to the pump. Some folds fit models."""
    limit_linear_algebra()
    pump = telemetry.pump
    for lane in lanes:
        pump.add_lane(lane)
    if telemetry.exporter is not None:
        pump.add_lane(telemetry.exporter.lane)
    telemetry.machine.attach(pump)
    # before the phases, which hand ended requests to the exporter: their spans have these events
    limit_events, autopilot_events = events
    pump.add_fold("limit_events", limit_events)
    pump.add_fold("autopilot_events", autopilot_events)
    pump.add_fold("phases", telemetry.phases)
    pump.add_fold("window", telemetry.window)
    pump.add_fold("diagnosis", telemetry.diagnoser)
    pump.add_fold("drain_rate", telemetry.drain_rate)
    if telemetry.autopilot_worker is not None:
        pump.add_lane(telemetry.autopilot_worker.lane)
        pump.add_fold("autopilot", telemetry.autopilot_worker)
    if steered is not None:
        _send_costs(pump, steered.client)


def _send_costs(pump: Pump, client: EngineClient) -> None:
    """The engine's token budget follows what its steps cost."""
    loop = asyncio.get_running_loop()
    pump.add_fold("step_cost", StepCostFold(lambda cost: _send_step_cost(loop, client, cost)))


def _build_machine(
    config: ObserverConfig, clock: Clock, observed: TelemetryInputs, isolation: Isolation
) -> MachineWatch:
    engine = observed.engine

    workers: dict[int, int] = {}

    def engine_pid() -> int | None:
        """The pid of the process that computes; None where it is not known."""
        started = engine.started if engine.has_engine else None
        if started is None or not started.pid:  # 0: on another machine
            return None
        if started.is_attached and started.pid not in workers:
            workers[started.pid] = worker_of(started.pid)
        return workers.get(started.pid, started.pid)

    def is_worker() -> bool:
        return engine_pid() not in (None, engine.started.pid if engine.started else None)

    gb, gflop = config.peaks.gb_per_s, config.peaks.gflop_per_s
    peaks = Peaks(
        bytes_per_s=None if gb is None else gb * 1e9,
        flop_per_s=None if gflop is None else gflop * 1e9,
        source="stated at the start" if gb or gflop else "not measured",
    )
    machine = MachineWatch(
        clock, engine_pid, observed.is_busy, peaks, is_worker, observed.watch_host
    )
    if machine.enabled:
        engine.on_frame = isolation.guard("loop_probe", machine.probe.alive)
    return machine


def _send_step_cost(loop: asyncio.AbstractEventLoop, client: EngineClient, cost: StepCost) -> None:
    """From the pump's thread to the event loop, which owns the socket to the engine."""
    command = SetStepCost(**msgspec.structs.asdict(cost))
    with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
        loop.call_soon_threadsafe(client.send, command)
