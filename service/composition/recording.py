"""Builds the flight recorder as the settings want it, and lets signals and crashes reach it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from service.config.settings import ConfigError, RecorderConfig
from telemetry.facts.clock import Clock
from telemetry.facts.pump import Pump
from telemetry.facts.records import EngineDied
from telemetry.journal.dumps import DumpReason
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.journal.journal import Journal
from telemetry.journal.journal_files import FolderInUse, JournalFiles
from telemetry.journal.watchdog import StallWatchdog


def default_dump_folder() -> Path:
    """`$XDG_CACHE_HOME/phasescope/dumps`, by default below ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "phasescope" / "dumps"


def build_recorder(config: RecorderConfig, clock: Clock, pump: Pump) -> FlightRecorder | None:
    """A recorder that is part of the pump; None when the settings turn it off.

    To be called on the event loop. Raises ConfigError.
    """
    if config.journal_bytes == 0:
        return None
    files: JournalFiles | None = None
    if config.journal_dir is not None:
        try:
            files = JournalFiles(Path(config.journal_dir), config.journal_bytes)
        except FolderInUse as error:
            raise ConfigError(f"--journal-dir {error}") from error
        except OSError as error:
            raise ConfigError(f"--journal-dir {config.journal_dir}: {error.strerror}") from error
    loop = asyncio.get_running_loop()

    def call_on_loop(callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is served any more
            loop.call_soon_threadsafe(callback)

    recorder = FlightRecorder(
        clock,
        pump,
        Journal(clock, config.journal_bytes),
        StallWatchdog(int(config.stall_s * 1e9)),
        default_dump_folder() if config.dump_dir is None else Path(config.dump_dir),
        config.dumps_kept,
        files,
        call_on_loop,
    )
    recorder.attach()
    return recorder


def record_failed_start(config: RecorderConfig, clock: Clock, detail: str) -> None:
    """Leave a record of a model that could not be loaded, where `--journal-dir` asks for one:
    there is no recorder yet, and `phasescope diagnose DIR` is to know. Never raises: the start
    has failed already, and why is being said."""
    if config.journal_dir is None or config.journal_bytes == 0:
        return
    journal = Journal(clock, config.journal_bytes)
    journal.on_facts([EngineDied(at_ns=clock.now_ns(), exit_code=None, detail=detail, restart=0)])
    journal.seal()
    with contextlib.suppress(OSError, FolderInUse):
        files = JournalFiles(Path(config.journal_dir), config.journal_bytes)
        files.write(journal)
        files.close()


def dump_on_signal(recorder: FlightRecorder | None) -> None:
    """SIGUSR2 asks for a dump, or does nothing when there is no recorder; it must be caught
    either way, because by default it ends the process. For the main thread.

    A handler of Python's own, and not of the event loop, so that a loop that is busy in
    Python code does not hold it up.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if recorder is not None:
            recorder.request_dump(DumpReason.SIGNAL)

    signal.signal(signal.SIGUSR2, handle)
