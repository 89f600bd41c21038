"""The current diagnosis, and the worker that explains a fault by replay; part of the composition
root."""

from __future__ import annotations

from functools import partial

from diagnosis.verdicts.classifier import Diagnoser, Diagnosis, diagnoser_failed
from service.composition.root_cause_worker import RootCauseWorker
from service.config.settings import ObserverConfig
from telemetry.facts.clock import Clock
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.pump.pump import Pump


def current_diagnosis(pump: Pump, diagnoser: Diagnoser) -> Diagnosis:
    """The diagnosis now; where the diagnoser itself raised, one that says so."""
    error = pump.isolation.error("diagnosis")
    return diagnoser.diagnosis() if error is None else diagnoser_failed(error)


def build_root_cause_worker(
    config: ObserverConfig,
    clock: Clock,
    pump: Pump,
    diagnoser: Diagnoser,
    recorder: FlightRecorder | None,
) -> RootCauseWorker | None:
    """What finds root causes by replay; None without a flight recorder to replay, or where the
    settings turn it off."""
    if recorder is None or not config.recorder.root_cause:
        return None

    def diagnosis() -> Diagnosis:
        with pump.lock:
            return current_diagnosis(pump, diagnoser)

    frames = partial(recorder.frames, "root cause")
    return RootCauseWorker(
        clock, diagnosis, frames, config.metrics.baseline, slo_file=config.metrics.slo_file
    )
