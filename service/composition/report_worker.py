"""Writes a folder for each incident, while the server runs: report, stacks and dump.

The stacks are taken at the verdict, and again a little later with the dump: what has moved in
between does not hang. The report is made by `phasescope report` in a child process of the lowest
priority, at first with the replays and, where these fail or take too long, without. A folder
appears under its name only when it is complete. An attempt that fails is counted; no error ends the
worker's thread.

Folders are bounded: one a symptom and incident, a least time between two, and so many kept of one
server. One that could not be written is tried again, with growing pauses.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from diagnosis.detection.tail_thresholds import INCIDENT_NS
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnosis
from service.composition.replay_child import COMMAND, TIMEOUT_S, ChildFailed, NiceChild
from service.composition.worker_failures import WorkerFailure, WorkerFailures, reason_of
from telemetry.facts.clock import Clock, utc_stamp
from telemetry.journal.in_use import in_use, is_in_use, writer_name, written_by
from telemetry.metrics.catalog import recording as catalog
from telemetry.metrics.metric import Metric

log = logging.getLogger("phasescope.reports")

REPORT, STACKS, DUMP = "report.html", "stacks.txt", "incident.journal"
SETTLE_NS = 3_000_000_000
PATIENT_NS = 15_000_000_000  # where no cause is found yet: it often follows
_POLL_S = 0.5
_PARTIAL = ".partial"
_INDETERMINATE = "indeterminate"
_UNEXPLAINED = (_INDETERMINATE, Symptom.SLO_MISSED.value)


@dataclass(frozen=True, slots=True)
class _Found:
    """An incident that has no folder yet."""

    name: str
    at_ns: int
    stacks: str

    @property
    def due_ns(self) -> int:
        """When its folder is written, if it has not ended before."""
        return self.at_ns + (PATIENT_NS if self.name in _UNEXPLAINED else SETTLE_NS)


class ReportWorker:
    """`diagnosis`, `frames` (the contents of a dump) and `stacks` are called on the worker's
    thread; `arguments` follow `report DUMP -o FILE`; `server` is a word for the names of the
    folders, which a later run of the same server has too."""

    def __init__(
        self,
        clock: Clock,
        diagnosis: Callable[[], Diagnosis],
        frames: Callable[[], list[bytes]],
        stacks: Callable[[], str],
        folder: Path,
        kept: int,
        interval_ns: int,
        arguments: Sequence[str] = (),
        child: tuple[str, ...] = COMMAND,
        limit_s: float = TIMEOUT_S,
        *,
        server: str,
    ) -> None:
        self.written = self.suppressed = 0
        self.failures = WorkerFailures("no incident report", catalog.REPORT_FAILURES)
        self._clock, self._diagnosis = clock, diagnosis
        self._frames, self._stacks = frames, stacks
        self._folder, self._kept, self._interval_ns = folder, kept, interval_ns
        self._arguments = tuple(arguments)
        self._child = NiceChild(child, limit_s)
        self._found: _Found | None = None
        self._told: set[str] = set()
        self._held: set[str] = set()
        self._healthy_since_ns: int | None = None
        self._not_before_ns: int | None = None
        self._numbers = 0
        self._writer, self._own = writer_name(server), written_by(server)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phasescope-reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and a child that runs; takes at most 5 s."""
        self._stopped.set()
        self._child.kill()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            try:
                self.tick()
            except Exception as error:
                self._found = None
                self._failed(reason_of(error), f"{type(error).__name__}: {error}")

    def tick(self) -> None:
        """One look; the thread takes two a second. May raise anything."""
        now_ns, name = self._clock.now_ns(), _name_of(self._diagnosis())
        if name is None:
            self._healthy_since_ns = self._healthy_since_ns or now_ns
            if now_ns - self._healthy_since_ns > INCIDENT_NS:
                self._told.clear()
                self._held.clear()
        else:
            self._healthy_since_ns = None
            self._named(name, now_ns)
        found = self._found
        if found is not None and (name is None or now_ns >= found.due_ns):
            self._found = None
            self._told.add(found.name)
            try:
                self._write(found)
            except Exception as error:
                self._told.discard(found.name)
                retry_ns = self._failed(reason_of(error), f"{type(error).__name__}: {error}")
                self._not_before_ns = now_ns + retry_ns

    def _named(self, name: str, now_ns: int) -> None:
        """What the diagnosis says first now. A cause takes the place of a verdict without one."""
        found = self._found
        if name in self._told or (found is not None and found.name not in _UNEXPLAINED):
            return
        if found is None:
            self._find(name, now_ns)
        elif name != found.name:
            self._found = replace(found, name=name, at_ns=now_ns)

    def _find(self, name: str, now_ns: int) -> None:
        if self._not_before_ns is not None and now_ns < self._not_before_ns:
            self.suppressed += name not in self._held
            self._held.add(name)
            return
        self._found = _Found(name, now_ns, self._stacks())

    def _write(self, found: _Found) -> None:
        """Raises OSError."""
        self._not_before_ns = self._clock.now_ns() + self._interval_ns
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._numbers += 1
        name = f"{utc_stamp()}-{self._writer}-{self._numbers:04d}-{found.name}"
        partial = self._folder / f"{name}{_PARTIAL}"
        partial.mkdir(mode=0o700)
        try:
            with in_use(partial):
                self._fill(partial, found)
                partial.rename(self._folder / name)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.written += 1
        log.warning("incident (%s): %s", found.name, self._folder / name)
        self._prune()

    def _fill(self, folder: Path, found: _Found) -> None:
        _write_private(folder / DUMP, b"".join(self._frames()))
        both = f"--- at the verdict ---\n\n{found.stacks}\n--- with the dump ---\n\n"
        _write_private(folder / STACKS, (both + self._stacks()).encode())
        self._report(folder)

    def _report(self, folder: Path) -> None:
        """Without a report the folder still has the stacks and the dump."""
        command = ["report", str(folder / DUMP), "-o", str(folder / REPORT), *self._arguments]
        for more in ([], ["--no-replay"]):
            if self._stopped.is_set():
                return
            try:
                self._child.run_command([*command, *more])
            except ChildFailed as failure:
                self._failed(failure.reason, str(failure))
            else:
                (folder / REPORT).chmod(0o600)
                self.failures.forget()
                return

    def _failed(self, reason: WorkerFailure, error: str) -> int:
        """How long to wait before the next attempt, in nanoseconds."""
        return 0 if self._stopped.is_set() else self.failures.note(reason, error)

    def _prune(self) -> None:
        """Remove the server's oldest folders beyond the number kept, and what a killed one left."""
        folders = sorted(path for path in self._folder.iterdir() if (path / DUMP).exists())
        whole = [
            path for path in folders if path.suffix != _PARTIAL and fnmatch(path.name, self._own)
        ]
        left = [path for path in folders if path.suffix == _PARTIAL and not is_in_use(path)]
        for old in [*whole[: -self._kept], *left]:
            shutil.rmtree(old, ignore_errors=True)


def _name_of(said: Diagnosis) -> str | None:
    """The first cause, or that there is none to be named; None while nothing is wrong."""
    if said.verdict == "healthy":
        return None
    return said.findings[0].symptom.value if said.findings else _INDETERMINATE


def _write_private(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(data)


def report_families(
    worker: ReportWorker | None,
) -> list[tuple[Metric, list[tuple[dict[str, str], float]]]]:
    """Without a worker the families have names and no sample."""
    if worker is None:
        names = (catalog.REPORTS, catalog.REPORTS_SUPPRESSED, catalog.REPORT_FAILURES)
        return [(metric, []) for metric in names]
    return [
        (catalog.REPORTS, [({}, float(worker.written))]),
        (catalog.REPORTS_SUPPRESSED, [({}, float(worker.suppressed))]),
        *worker.failures.families(),
    ]
