"""Explains a fault while it lasts: runs `phasescope diagnose --root --settings` on a dump, in a
child process.

Finding the root cause and the best settings replays the recorded seconds many times, which takes
seconds of a CPU. So a child with the lowest priority does it, and the worker then waits so long
that the children use no more than `CPU_SHARE` of one core. An attempt that fails, for a full disk
or for any other reason, is recorded and repeated later; no error ends the worker's thread. Of an
engine that is not ours it says that it abstains.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from diagnosis.verdicts.abstentions import no_replay
from diagnosis.verdicts.classifier import Diagnosis
from service.composition.replay_child import COMMAND, TIMEOUT_S, ChildFailed, ReplayChild
from service.composition.worker_failures import WorkerFailure, WorkerFailures, reason_of
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import OWN_ENGINE

log = logging.getLogger(__name__)

CPU_SHARE = 0.05
_LEAST_FAULT_NS = 5_000_000_000
_POLL_S = 0.5
NOTHING = b'{"state":"nothing is wrong, or not for long enough"}'


class RootCauseWorker:
    """`frames` gives the contents of a dump, `diagnosis` the current diagnosis; both are called on
    the worker's thread. `child` is the command that `diagnose ...` is appended to, `limit_s` how
    long it may take."""

    def __init__(
        self,
        clock: Clock,
        diagnosis: Callable[[], Diagnosis],
        frames: Callable[[], list[bytes]],
        baseline: str | None,
        child: tuple[str, ...] = COMMAND,
        limit_s: float = TIMEOUT_S,
        slo_file: str | None = None,
    ) -> None:
        self.failures = WorkerFailures()
        self._explanation = NOTHING
        self._clock = clock
        self._diagnosis = diagnosis
        self._baseline, self._slo_file = baseline, slo_file
        self._child = ReplayChild(frames, child, limit_s)
        self._not_before_ns = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phasescope-root", daemon=True)

    @property
    def answer(self) -> bytes:
        """The last explanation as JSON; with `failure` added when the last attempt failed."""
        failed = self.failures.last
        if failed is None:
            return self._explanation
        return msgspec.json.encode({**msgspec.json.decode(self._explanation), "failure": failed})

    @property
    def cpu_s(self) -> float:
        """CPU time of all attempts."""
        return self._child.cpu_s

    @property
    def is_alive(self) -> bool:
        """Whether the worker's thread runs."""
        return self._thread.is_alive()

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
                if self._is_due():
                    self._explain()
                    self.failures.forget()
            except ChildFailed as failure:
                self._failed(failure.reason, str(failure))
            except Exception as error:
                reason = reason_of(error)
                if reason is WorkerFailure.INTERNAL:
                    log.debug("the root cause worker continues after an error", exc_info=True)
                self._failed(reason, f"{type(error).__name__}: {error}")

    def _failed(self, reason: WorkerFailure, error: str) -> None:
        if self._stopped.is_set():
            return
        retry_ns = self._clock.now_ns() + self.failures.note(reason, error)
        self._not_before_ns = max(self._not_before_ns, retry_ns)

    def _is_due(self) -> bool:
        now_ns = self._clock.now_ns()
        if now_ns < self._not_before_ns:
            return False
        diagnosis = self._diagnosis()
        if diagnosis.engine != OWN_ENGINE:
            self._explanation = msgspec.json.encode({"state": no_replay(diagnosis.engine)})
            return False
        onset_ns = _onset_ns(diagnosis)
        if onset_ns is None or diagnosis.verdict != "fault":
            return False
        return now_ns - onset_ns >= _LEAST_FAULT_NS

    def _explain(self) -> None:
        """Raises ChildFailed, or the error of a dump that cannot be taken or written."""
        arguments = ["--root", "--settings", "--json"]
        arguments += ["--baseline", self._baseline] if self._baseline else []
        arguments += ["--slo-file", self._slo_file] if self._slo_file else []
        begun_ns, before_s = self._clock.now_ns(), self._child.cpu_s
        try:
            self._explanation = self._child.run(arguments)
        finally:
            cpu_s = self._child.cpu_s - before_s
            self._not_before_ns = begun_ns + int(cpu_s / CPU_SHARE * 1e9)


def _onset_ns(diagnosis: Diagnosis) -> int | None:
    """Since when it lasts: a broken promise has an onset of its own, since nothing had changed."""
    if diagnosis.onset_ns is not None:
        return diagnosis.onset_ns
    return min((f.onset_ns for f in diagnosis.findings if f.onset_ns is not None), default=None)
