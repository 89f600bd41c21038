"""Failures of a worker that replays in a child process: counted by reason, the first of each logged
as a warning, and retried with exponential backoff."""

from __future__ import annotations

import errno
import logging
from enum import StrEnum

import msgspec

from telemetry.metrics.catalog import harm as catalog
from telemetry.metrics.metric import Metric

log = logging.getLogger(__name__)

_FIRST_WAIT_NS = 5_000_000_000
_LONGEST_WAIT_NS = 600_000_000_000


class WorkerFailure(StrEnum):
    """Why an attempt failed."""

    DISK = "disk"  # the dump could not be written
    START = "start"  # the child process could not be started
    KILLED = "killed"  # a signal ended the child, perhaps for want of memory
    TIMEOUT = "timeout"  # the child took too long and was ended
    REPLAY = "replay"  # the child ended with an error
    INTERNAL = "internal"  # an error of this server's own


WHAT_TO_DO = {
    WorkerFailure.DISK: "Free space where temporary files go, or set TMPDIR to another folder.",
    WorkerFailure.START: "See that a process can start: limits of processes, files and memory.",
    WorkerFailure.KILLED: "See whether the kernel ended it for memory (dmesg); a smaller "
    "--journal-memory makes it need less.",
    WorkerFailure.TIMEOUT: "Take a dump (POST /debug/dump) and run `phasescope diagnose DUMP "
    "--root` on a machine with free cores.",
    WorkerFailure.REPLAY: "Take a dump (POST /debug/dump) and run `phasescope diagnose DUMP "
    "--root`: it says more.",
    WorkerFailure.INTERNAL: "The traceback is on standard error: report it. A restart tries anew.",
}


class LastFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The last failed attempt, as `/debug/root` shows it; `again_in_s` is the wait after it."""

    reason: WorkerFailure
    error: str
    what_to_do: str
    attempts_failed: int
    again_in_s: float


class WorkerFailures:
    """Written by the worker's thread, read by any. `last` is None after a successful attempt."""

    def __init__(self, what: str = "no root cause", metric: Metric = catalog.ROOT_FAILURES) -> None:
        """`what` is missing after a failed attempt, `metric` counts them by reason."""
        self._what, self._metric = what, metric
        self.last: LastFailure | None = None
        self._counts = dict.fromkeys(WorkerFailure, 0)
        self._consecutive = 0

    def note(self, reason: WorkerFailure, error: str) -> int:
        """Record a failed attempt; returns how long to wait before the next one, in nanoseconds."""
        wait_ns: int = min(_FIRST_WAIT_NS << min(self._consecutive, 10), _LONGEST_WAIT_NS)
        self._consecutive += 1
        self._counts[reason] += 1
        self.last = LastFailure(
            reason=reason,
            error=error,
            what_to_do=WHAT_TO_DO[reason],
            attempts_failed=self._consecutive,
            again_in_s=wait_ns / 1e9,
        )
        level = logging.WARNING if self._counts[reason] == 1 else logging.DEBUG
        log.log(level, "%s (%s): %s. %s", self._what, reason.value, error, WHAT_TO_DO[reason])
        return wait_ns

    def forget(self) -> None:
        """An attempt was successful."""
        self.last, self._consecutive = None, 0

    def families(self) -> list[tuple[Metric, list[tuple[dict[str, str], float]]]]:
        counts = [({"reason": one.value}, float(n)) for one, n in self._counts.items()]
        return [(self._metric, counts)]


def reason_of(error: Exception) -> WorkerFailure:
    """The reason of an error that an attempt raised before its child ran."""
    if isinstance(error, OSError):
        of_disk = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EFBIG)
        is_disk = error.errno in of_disk or isinstance(error, FileNotFoundError)
        return WorkerFailure.DISK if is_disk else WorkerFailure.START
    return WorkerFailure.INTERNAL
