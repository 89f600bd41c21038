"""What is said of the server now, and the worker that finds what would help; part of the
composition root."""

from __future__ import annotations

from functools import partial

from diagnosis.verdicts.classifier import Diagnoser, Diagnosis, diagnoser_failed
from service.composition.root_worker import RootWorker
from service.config.settings import ServeConfig
from telemetry.facts.clock import Clock
from telemetry.facts.pump import Pump
from telemetry.journal.flight_recorder import FlightRecorder


def opinion(pump: Pump, diagnoser: Diagnoser) -> Diagnosis:
    """What is said now, or that nothing can be said because the diagnoser itself raised."""
    error = pump.isolation.error("diagnosis")
    return diagnoser.diagnosis() if error is None else diagnoser_failed(error)


def build_root_worker(
    config: ServeConfig,
    clock: Clock,
    pump: Pump,
    diagnoser: Diagnoser,
    recorder: FlightRecorder | None,
) -> RootWorker | None:
    """None where there is no record to replay, or nobody wants it."""
    if recorder is None or not config.recorder.root_cause:
        return None

    def diagnosis() -> Diagnosis:
        with pump.lock:
            return opinion(pump, diagnoser)

    frames = partial(recorder.frames, "root cause")
    return RootWorker(clock, diagnosis, frames, config.metrics.baseline)
