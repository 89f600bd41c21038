"""The engine as a child process: started, waited for, ended.

It imports nothing but the standard library, because the first engine is started before
everything else: its libraries take longest to load, and the gateway's load beside them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from telemetry.clock import Clock

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """One engine, started at `begun_ns`; `connection` is the gateway's end of its socket."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    begun_ns: int

    async def wait(self, grace_s: float) -> int:
        """Its exit code; a process that lingers beyond the grace time is killed."""
        try:
            async with asyncio.timeout(grace_s):
                while self.process.poll() is None:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self.process.kill()
        return self.process.wait()

    def abandon(self) -> None:
        """Nobody will serve it: it ends by itself when its socket closes."""
        self.connection.close()


def start_engine(clock: Clock) -> EngineProcess:
    """An engine that waits for its Launch. Raises OSError."""
    begun_ns = clock.now_ns()
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            (sys.executable, "-m", "service.cli.main", "engine", "--fd", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # signals to our group are for us: we drain first
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return EngineProcess(process, ours, begun_ns)
