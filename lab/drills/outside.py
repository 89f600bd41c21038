"""Helper processes beside a server, and hooks inside its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from lab.drills.helpers import STOPPERS
from telemetry.facts.clock import Clock

HOOKS = Path(__file__).parent / "hooks"
_SIGNAL = 6  # above SIGRTMIN, as the hooks expect it
_END_WITHIN_S = 5.0
_DONE_WITHIN_S = 60.0


class InjectionFailed(OSError):
    """The fault could not be put in; the message says why."""


class Nice(msgspec.Struct, frozen=True, kw_only=True):
    """Nice values in force when a helper was ended: of its process, and of its session where the
    kernel schedules sessions as groups (None: it does not)."""

    helper: str
    process: int
    session: int | None


class Helper:
    """A process of `lab.drills.helpers`. It loads when it is started, which takes a moment,
    and does nothing until `go`. `failure` says why it did not work until it was ended; None where
    it did, and before its end."""

    def __init__(self, what: str, *values: float, into: Path | None = None) -> None:
        """Its standard output goes `into` a file."""
        self.failure: str | None = None
        self.nice: Nice | None = None
        self._what = what
        self._stopped_pid = int(values[0]) if what in STOPPERS else None
        self._into = into
        self._command = [sys.executable, "-m", "lab.drills.helpers", what, *map(str, values)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._into or os.devnull, "wb") as into:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=into, start_new_session=True
            )

    def go(self) -> None:
        """Begin its work. Raises InjectionFailed, BrokenPipeError."""
        process = self._process
        assert process is not None, "the helper was not started"
        assert process.stdin is not None
        if process.poll() is not None:
            raise InjectionFailed(
                f"the helper {self._what} ended with code {process.returncode} before its work"
            )
        process.stdin.write(b"go\n")
        process.stdin.flush()

    async def end(self, within_s: float = _END_WITHIN_S) -> None:
        """End the process, and at last continue what it stops; may be called again."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        code = process.poll()
        if code is None:
            self.nice = _nice_of(self._what, process.pid)
        else:
            self.failure = f"the helper {self._what} ended by itself with code {code}"
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            code = await asyncio.to_thread(process.wait, within_s)
            if code:
                self.failure = self.failure or f"the helper {self._what} ended with code {code}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.failure = f"the helper {self._what} did not end, and was killed"
        finally:
            self._continue_stopped()

    def _continue_stopped(self) -> None:
        """A helper that was killed, or died, cannot have done so."""
        if self._stopped_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._stopped_pid, signal.SIGCONT)


def _nice_of(what: str, pid: int) -> Nice | None:
    """The priority of a process; None of one that has gone."""
    try:
        process = os.getpriority(os.PRIO_PROCESS, pid)
    except ProcessLookupError:
        return None
    session: int | None = None
    with contextlib.suppress(OSError, ValueError):
        session = int(Path(f"/proc/{pid}/autogroup").read_text().rpartition(" ")[2])
    return Nice(helper=what, process=process, session=session)


class Hooks:
    """Sends orders to processes that were started with `env`; `folder` must exist.

    Every server of a drill has the hooks, used or not, so that their presence shows no fault.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._orders = 0
        path = os.pathsep.join([str(HOOKS), os.environ.get("PYTHONPATH", "")])
        self.env = {"PHASESCOPE_DRILL": str(folder), "PYTHONPATH": path.strip(os.pathsep)}

    async def send(self, pid: int, what: str, **more: Any) -> None:
        """Send an order; returns when it was carried out. Raises InjectionFailed where it was
        refused, TimeoutError, ProcessLookupError."""
        self._orders += 1
        order = {"do": what, "number": self._orders, **more}
        (self._folder / f"{pid}.order").write_bytes(msgspec.json.encode(order))
        os.kill(pid, signal.SIGRTMIN + _SIGNAL)
        done = self._folder / f"{pid}.done"
        limit_ns = self._clock.now_ns() + int(_DONE_WITHIN_S * 1e9)
        while True:
            number, _, refusal = (done.read_text() if done.exists() else "").partition(" ")
            if number == str(self._orders):
                break
            if self._clock.now_ns() > limit_ns:
                raise TimeoutError(f"process {pid} did not carry out {what}")
            await asyncio.sleep(0.005)
        if refusal:
            raise InjectionFailed(f"process {pid} did not carry out {what}: {refusal}")
