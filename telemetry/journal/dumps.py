"""Dumps of the flight recorder: files written when something went wrong, or on request.

A dump appears under its name only when it is complete, and only its owner can read it. The oldest
of the same server are deleted when there are too many: others may have the same folder. Each reason
has a least interval between dumps, so that a service with a lasting fault does not write the same
minutes again and again.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from telemetry.facts.clock import Clock, utc_stamp
from telemetry.journal.atomic_file import PARTIAL
from telemetry.journal.in_use import in_use, is_in_use, writer_name, written_by
from telemetry.journal.journal_reader import SUFFIX

KEPT = 16
_SECOND_NS = 1_000_000_000


class DumpReason(StrEnum):
    """Why a dump was taken."""

    SLO_BURN = "slo_burn"
    STALL = "stall"
    SIGNAL = "signal"
    ENGINE_DIED = "engine_died"
    REQUEST = "request"


LEAST_INTERVAL_NS = {
    DumpReason.SLO_BURN: 300 * _SECOND_NS,
    DumpReason.STALL: 60 * _SECOND_NS,
    DumpReason.ENGINE_DIED: 60 * _SECOND_NS,
    DumpReason.SIGNAL: _SECOND_NS,
    DumpReason.REQUEST: _SECOND_NS,
}


class DumpRefused(Exception):
    """The last dump for that reason is too recent."""

    def __init__(self, reason: DumpReason, retry_after_s: int) -> None:
        super().__init__(f"the last dump ({reason.value}) is too recent")
        self.retry_after_s = retry_after_s


class Dump(msgspec.Struct, frozen=True):
    """A dump that was written; `took_ns` is the time from the request to the complete file."""

    path: str
    reason: DumpReason
    bytes: int
    took_ns: int


class Dumps:
    """The folder of dumps. Used by one thread. `server` is a word for the names of its files, which
    a later run of the same server has too."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        frames: Callable[[str], Iterable[bytes]],
        kept: int = KEPT,
        *,
        server: str,
    ) -> None:
        self.written: Counter[DumpReason] = Counter()
        self.suppressed: Counter[DumpReason] = Counter()
        self.failed = 0
        self.last_path: str | None = None
        self._folder = folder
        self._clock = clock
        self._frames = frames
        self._kept = kept
        self._last_ns: dict[DumpReason, int] = {}
        self._numbers = 0
        self._writer, self._own = writer_name(server), f"{written_by(server)}{SUFFIX}"

    def write(self, reason: DumpReason, requested_ns: int) -> Dump:
        """Write a dump. Raises DumpRefused if it is too soon after the last one for that reason,
        OSError if the folder cannot be written."""
        self._check_interval(reason)
        try:
            path, size_bytes = self._write(reason)
        except OSError:
            self.failed += 1
            raise
        now_ns = self._clock.now_ns()
        self._last_ns[reason] = now_ns
        self.written[reason] += 1
        self.last_path = str(path)
        self._prune()
        return Dump(str(path), reason, size_bytes, now_ns - requested_ns)

    def _check_interval(self, reason: DumpReason) -> None:
        last_ns = self._last_ns.get(reason)
        if last_ns is None:
            return
        left_ns = last_ns + LEAST_INTERVAL_NS[reason] - self._clock.now_ns()
        if left_ns > 0:
            self.suppressed[reason] += 1
            raise DumpRefused(reason, -(-left_ns // _SECOND_NS))

    def _write(self, reason: DumpReason) -> tuple[Path, int]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._numbers += 1
        name = f"{utc_stamp()}-{self._writer}-{self._numbers:04d}-{reason.value}{SUFFIX}"
        path, partial = self._folder / name, self._folder / f"{name}{PARTIAL}"
        size_bytes = 0
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "wb") as file, in_use(partial):
                for frame in self._frames(reason.value):
                    file.write(frame)
                    size_bytes += len(frame)
                file.flush()
                partial.rename(path)
        except BaseException:
            _remove(partial)
            raise
        return path, size_bytes

    def _prune(self) -> None:
        """Delete the server's oldest dumps beyond the number kept, and partial files of killed
        writers."""
        for partial in self._folder.glob(f"*{SUFFIX}{PARTIAL}"):
            if not is_in_use(partial):
                _remove(partial)
        for old in sorted(self._folder.glob(self._own))[: -self._kept]:
            _remove(old)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
