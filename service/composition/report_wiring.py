"""Builds the worker that writes a folder for each incident; part of the composition root."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from service.composition.recording import server_word
from service.composition.report_worker import ReportWorker
from service.composition.root_cause_wiring import current_diagnosis
from service.config.settings import ConfigError, ObserverConfig
from telemetry.facts.clock import Clock
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.pump.pump import Pump


def build_report_worker(
    config: ObserverConfig,
    clock: Clock,
    pump: Pump,
    diagnoser: Diagnoser,
    recorder: FlightRecorder | None,
    stacks: Callable[[], str],
    replays: bool = True,
) -> ReportWorker | None:
    """What writes a report for each incident; None without `--report-dir`. `stacks` are those of
    the processes, `replays` whether the engine's scheduler is one that can be replayed. Raises
    ConfigError if the folder cannot be written."""
    settings = config.recorder
    if settings.report_dir is None or recorder is None:
        return None
    folder = Path(settings.report_dir)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--report-dir {folder}: {error.strerror}") from error

    def diagnosis() -> Diagnosis:
        with pump.lock:
            return current_diagnosis(pump, diagnoser)

    arguments = [] if replays else ["--no-replay"]
    if config.metrics.baseline is not None:
        arguments += ["--baseline", config.metrics.baseline]
    if config.metrics.slo_file is not None:
        arguments += ["--slo-file", config.metrics.slo_file]
    return ReportWorker(
        clock,
        diagnosis,
        partial(recorder.frames, "incident"),
        stacks,
        folder,
        settings.reports_kept,
        int(settings.report_interval_s * 1e9),
        arguments,
        server=server_word(config.gateway),
    )
