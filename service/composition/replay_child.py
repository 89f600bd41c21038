"""Runs commands of ours, such as `phasescope diagnose` on a dump of the flight recorder, in a child
process of the lowest priority, so that a replay takes nothing from the server beside it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from service.composition.worker_failures import WorkerFailure

COMMAND = (sys.executable, "-m", "service.cli.main")
TIMEOUT_S = 120.0
_NICE = 19


class ChildFailed(Exception):
    """The child gave no answer; the message is one line."""

    def __init__(self, reason: WorkerFailure, error: str) -> None:
        super().__init__(error)
        self.reason = reason


class NiceChild:
    """`command` is what arguments are appended to, and `limit_s` how long it may take. One thread
    runs it, any may kill it: then it never runs again."""

    def __init__(self, command: tuple[str, ...] = COMMAND, limit_s: float = TIMEOUT_S) -> None:
        self.cpu_s = 0.0  # of all runs
        self._command, self._limit_s = command, limit_s
        self._child: subprocess.Popen[bytes] | None = None
        self._killed = threading.Event()

    def kill(self) -> None:
        """End a child that runs, or that is about to begin."""
        self._killed.set()  # before the look: a child that it misses looks after it has begun
        child = self._child
        if child is not None:
            child.kill()

    def run_command(self, arguments: Sequence[str]) -> bytes:
        """What it writes to its standard output. Raises ChildFailed."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [*self._command, *arguments]
        if self._killed.is_set():
            raise ChildFailed(WorkerFailure.KILLED, "its process was ended before it began")
        try:
            child = self._child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
            )
        except OSError as error:
            raise ChildFailed(WorkerFailure.START, f"{command[0]}: {error}") from error
        if self._killed.is_set():
            child.kill()
        with contextlib.suppress(OSError):  # it has ended already, or this is not permitted
            os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
        output, errors, timed_out = self._wait(child)
        code, self._child = child.returncode, None
        if timed_out:
            raise ChildFailed(WorkerFailure.TIMEOUT, f"it took longer than {self._limit_s:g} s")
        if code < 0:
            raise ChildFailed(WorkerFailure.KILLED, f"its process was ended by signal {-code}")
        if code or not output.strip():
            lines = errors.decode(errors="replace").strip().splitlines()
            raise ChildFailed(WorkerFailure.REPLAY, lines[-1] if lines else f"exit code {code}")
        return output.strip()

    def _wait(self, child: subprocess.Popen[bytes]) -> tuple[bytes, bytes, bool]:
        """Its output and errors, and whether it was ended for taking too long. Its CPU time is
        counted from the children of this process that ended in the meantime; where two ran at the
        same time, both are charged for both."""
        before_s = _children_s()
        try:
            output, errors = child.communicate(timeout=self._limit_s)
            return output, errors, False
        except subprocess.TimeoutExpired:
            child.kill()
            output, errors = child.communicate()
            return output, errors, True
        finally:
            self.cpu_s += _children_s() - before_s


class ReplayChild(NiceChild):
    """Runs `diagnose` on a dump; `frames` gives its contents."""

    def __init__(
        self,
        frames: Callable[[], list[bytes]],
        command: tuple[str, ...] = COMMAND,
        limit_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(command, limit_s)
        self._frames = frames

    def run(self, arguments: Sequence[str]) -> bytes:
        """What `diagnose DUMP ARGUMENTS` writes to its standard output.

        Raises ChildFailed, or the error of a dump that cannot be taken or written.
        """
        with tempfile.TemporaryDirectory(prefix="phasescope-replay-") as folder:
            path = Path(folder) / "now.journal"
            path.write_bytes(b"".join(self._frames()))
            return self.run_command(["diagnose", str(path), *arguments])


def _children_s() -> float:
    """CPU time of this process's children that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system
