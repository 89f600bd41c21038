"""The engine as a child process: started, waited for, ended.

It imports nothing but the standard library, because the first engine is started before
everything else: its libraries take longest to load, and the gateway's load beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from io import FileIO

from service.process.heartbeat import PulseReader, shared_file
from telemetry.facts.clock import Clock

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """One engine, started at `begun_ns`; `connection` is the gateway's end of its socket, `pulse`
    its heartbeat. On a signal it writes its stacks to `stacks`."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    begun_ns: int
    pulse: PulseReader
    stacks: FileIO

    async def wait(self, grace_s: float) -> int:
        """Its exit code; a process that lingers beyond the grace time is killed."""
        try:
            async with asyncio.timeout(grace_s):
                while self.process.poll() is None:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self.process.kill()
        return self.process.wait()

    def close(self) -> None:
        """Let go of what was shared with it. Its socket closes, at which it ends by itself."""
        self.connection.close()
        self.stacks.close()


def start_engine(clock: Clock) -> EngineProcess:
    """An engine that waits for its Launch. Raises OSError."""
    begun_ns = clock.now_ns()
    with contextlib.ExitStack() as on_error, contextlib.ExitStack() as theirs_only:
        ours, theirs = socket.socketpair()
        on_error.callback(ours.close)
        theirs_only.callback(theirs.close)
        pulse_fd = shared_file("phasescope-pulse")
        theirs_only.callback(os.close, pulse_fd)
        pulse = PulseReader(pulse_fd)
        stacks = on_error.enter_context(FileIO(shared_file("phasescope-stacks"), "r+"))
        shared = {
            "--fd": theirs.fileno(),
            "--pulse-fd": pulse_fd,
            "--stacks-fd": stacks.fileno(),
        }
        words = [word for flag, number in shared.items() for word in (flag, str(number))]
        process = subprocess.Popen(
            (sys.executable, "-m", "service.cli.main", "engine", *words),
            pass_fds=tuple(shared.values()),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # signals to our group are for us: we drain first
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        on_error.pop_all()
    return EngineProcess(process, ours, begun_ns, pulse, stacks)
