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

from telemetry.facts.clock import Clock

HOOKS = Path(__file__).parent / "hooks"
_SIGNAL = 6  # above SIGRTMIN, as the hooks expect it
_END_WITHIN_S = 5.0
_DONE_WITHIN_S = 60.0


class Helper:
    """A process of `lab.drills.helpers`. It loads when it is started, which takes a moment,
    and does nothing until `go`."""

    def __init__(self, what: str, *values: float, into: Path | None = None) -> None:
        """Its standard output goes `into` a file."""
        self._into = into
        self._command = [sys.executable, "-m", "lab.drills.helpers", what, *map(str, values)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._into or os.devnull, "wb") as into:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=into, start_new_session=True
            )

    def go(self) -> None:
        """Begin its work."""
        assert self._process is not None, "the helper was not started"
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    async def end(self) -> None:
        """End the process; may be called again."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            await asyncio.to_thread(process.wait, _END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
        """Send an order; returns when it was carried out. Raises TimeoutError,
        ProcessLookupError."""
        self._orders += 1
        order = {"do": what, "number": self._orders, **more}
        (self._folder / f"{pid}.order").write_bytes(msgspec.json.encode(order))
        os.kill(pid, signal.SIGRTMIN + _SIGNAL)
        done = self._folder / f"{pid}.done"
        limit_ns = self._clock.now_ns() + int(_DONE_WITHIN_S * 1e9)
        while not done.exists() or done.read_text() != str(self._orders):
            if self._clock.now_ns() > limit_ns:
                raise TimeoutError(f"process {pid} did not carry out {what}")
            await asyncio.sleep(0.005)
