"""All folds and threads of one server's telemetry, as the gateway reads them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from diagnosis.autopilot.view import AutopilotView
from diagnosis.verdicts.classifier import Diagnoser
from service.composition.autopilot_worker import AutopilotWorker
from service.composition.metrics_wiring import call_concurrently
from service.composition.report_worker import ReportWorker
from service.composition.root_cause_wiring import current_diagnosis
from service.composition.root_cause_worker import NOTHING, RootCauseWorker
from service.composition.tracing_wiring import tracing_view
from telemetry.facts.clock import Clock
from telemetry.facts.records import RequestEnded
from telemetry.host.machine import MachineWatch
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.ledger.builder import LedgerBuilder
from telemetry.metrics.exposition import Metrics
from telemetry.metrics.otlp_push import MetricPusher
from telemetry.pump.pump import Pump
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.request_list import LIVE_SHOWN, RequestList
from telemetry.requests.slo_policy import SloPolicy
from telemetry.requests.timelines import TimelineStore
from telemetry.requests.timings import RequestTimings, timings_of
from telemetry.stats.drain_rate import DrainRate
from telemetry.stats.snapshot import Snapshot
from telemetry.stats.window_fold import WindowFold
from telemetry.traces.otlp import SpanExporterThread
from telemetry.traces.sampling import SamplingPolicy, TracingMode


@dataclass(frozen=True, slots=True)
class Telemetry:
    """All folds and what feeds them; implements the gateway's `Views`."""

    clock: Clock
    pump: Pump
    phases: PhaseFold
    window: WindowFold
    all_metrics: Metrics
    timelines: TimelineStore
    request_list: RequestList
    diagnoser: Diagnoser
    exporter: SpanExporterThread | None
    pusher: MetricPusher | None
    machine: MachineWatch
    drain_rate: DrainRate
    ledger_builder: LedgerBuilder
    recorder: FlightRecorder | None
    root_cause_worker: RootCauseWorker | None
    slo_policy: SloPolicy
    report_worker: ReportWorker | None = None
    autopilot_worker: AutopilotWorker | None = None
    why_no_autopilot: str = ""
    why_no_root: str = ""

    def current(self) -> Snapshot:
        with self.pump.caught_up():
            return self.window.snapshot(self.clock.now_ns())

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.current())

    def request(self, request_id: str) -> bytes | None:
        with self.pump.caught_up():
            return self.timelines.get(request_id, self.phases, self.clock.now_ns())

    def requests(self, since: int, most: int) -> bytes:
        with self.pump.caught_up():
            live, total = self.phases.oldest(LIVE_SHOWN), self.phases.live
            return self.request_list.since(since, most, live, total, self.clock.now_ns())

    def batch(self, rows: int) -> bytes:
        with self.pump.caught_up():
            found = self.window.batch(rows, self.clock.now_ns())
        return msgspec.json.encode(found)

    def harm(self) -> bytes:
        with self.pump.caught_up():
            return msgspec.json.encode(self.ledger_builder.harm.report())

    def diagnosis(self) -> bytes:
        with self.pump.caught_up():
            return msgspec.json.encode(current_diagnosis(self.pump, self.diagnoser))

    def root(self) -> bytes:
        if self.root_cause_worker is not None:
            return self.root_cause_worker.answer
        return msgspec.json.encode({"state": self.why_no_root}) if self.why_no_root else NOTHING

    def autopilot(self) -> bytes:
        worker = self.autopilot_worker
        if worker is None:
            off = AutopilotView(mode="off", state="off", why_off=self.why_no_autopilot)
            return msgspec.json.encode(off)
        return msgspec.json.encode(worker.view())

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
        return msgspec.json.encode(tracing_view(self.exporter))

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
        for worker in (self.root_cause_worker, self.report_worker):
            if worker is not None:
                worker.start()
        if self.autopilot_worker is not None:
            self.autopilot_worker.start()

    def stop(self) -> None:
        """Fold what is left, then send what is left; bounded."""
        if self.autopilot_worker is not None:
            self.autopilot_worker.stop()
        for worker in (self.report_worker, self.root_cause_worker):
            if worker is not None:
                worker.stop()
        self.pump.stop()
        self.machine.stop()
        with self.pump.lock:
            self.phases.close()
        if self.recorder is not None:
            self.recorder.stop()
        senders = (self.exporter, self.pusher)
        call_concurrently([sender.shutdown for sender in senders if sender is not None])
