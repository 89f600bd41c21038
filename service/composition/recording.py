"""Builds the flight recorder from the settings; dumps on a signal; the record of a failed start."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from service.config.settings import ConfigError, GatewayConfig, ObserverConfig, RecorderConfig
from telemetry.facts.clock import Clock
from telemetry.facts.records import EngineDied
from telemetry.journal.dumps import DumpReason
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.journal.journal import Journal
from telemetry.journal.journal_files import FolderInUse, JournalFiles
from telemetry.journal.watchdog import StallWatchdog
from telemetry.pump.pump import Pump
from telemetry.requests.slo_policy import SloPolicy


def server_word(gateway: GatewayConfig) -> str:
    """Tells the files of this server from those of others in the same folder. It is of the address
    that was stated, so that the next run removes the oldest files of this one: `port8000`, or
    `uds` with a digest of the path."""
    if gateway.http.uds is None:
        return f"port{gateway.port}"
    path = os.fsencode(os.path.abspath(gateway.http.uds))
    return f"uds{hashlib.blake2b(path, digest_size=4).hexdigest()}"


def build_recorder(
    settings: ObserverConfig, clock: Clock, pump: Pump, policy: SloPolicy
) -> FlightRecorder | None:
    """A recorder attached to the pump; None when the settings turn it off.

    To be called on the event loop. Raises ConfigError.
    """
    config = settings.recorder
    if config.journal_bytes == 0:
        return None
    files: JournalFiles | None = None
    if config.journal_dir is not None:
        try:
            files = JournalFiles(Path(config.journal_dir), config.journal_bytes, clock)
        except FolderInUse as error:
            raise ConfigError(f"--journal-dir {error}") from error
        except OSError as error:
            raise ConfigError(f"--journal-dir {config.journal_dir}: {error.strerror}") from error
    loop = asyncio.get_running_loop()

    def call_on_loop(callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
            loop.call_soon_threadsafe(callback)

    recorder = FlightRecorder(
        clock,
        pump,
        Journal(clock, config.journal_bytes, slo=policy),
        StallWatchdog(int(config.stall_s * 1e9)),
        config.dump_folder,
        config.dumps_kept,
        files,
        call_on_loop,
        server=server_word(settings.gateway),
    )
    recorder.attach()
    return recorder


def record_failed_start(config: RecorderConfig, clock: Clock, detail: str) -> None:
    """Write a journal with the reason of a failed start, for `phasescope diagnose DIR`; nothing
    without `--journal-dir`. Needed because models are read before there is a flight recorder.
    Never raises: the caller reports the failed start itself."""
    if config.journal_dir is None or config.journal_bytes == 0:
        return
    journal = Journal(clock, config.journal_bytes)
    journal.on_facts([EngineDied(at_ns=clock.now_ns(), exit_code=None, detail=detail, restart=0)])
    journal.seal()
    with contextlib.suppress(OSError, FolderInUse):
        files = JournalFiles(Path(config.journal_dir), config.journal_bytes, clock)
        files.write(journal)
        files.close()


def dump_on_signal(recorder: FlightRecorder | None) -> None:
    """Write a dump on SIGUSR2; without a recorder do nothing. The signal is caught in both cases,
    because by default it ends the process. To be called on the main thread.

    It is a handler of Python's own, and not of the event loop, so that a loop that is busy in
    Python code does not delay it.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if recorder is not None:
            recorder.request_dump(DumpReason.SIGNAL)

    signal.signal(signal.SIGUSR2, handle)
