"""Starts, waits for and ends the engine process.

This module imports only the standard library. The first engine is started before anything else is
imported: its libraries take longest to load, and those of the gateway load meanwhile.
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

from service.process.heartbeat import HeartbeatReader, shared_file
from telemetry.facts.clock import Clock

_POLL_S = 0.01
KILLED_S = 2.0
"""How long a process may take to end after SIGKILL. One that waits in the kernel, for a device or a
file system, does not end before that answers."""


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running engine process.

    `connection` is the gateway's end of the socket, `begun_ns` when the process was started,
    `stacks` the shared file to which it writes its threads' stacks on STACKS_SIGNAL.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket
    begun_ns: int
    heartbeat: HeartbeatReader
    stacks: FileIO

    async def wait(self, grace_s: float, killed_s: float = KILLED_S) -> int | None:
        """Wait for its exit code; after `grace_s` the process is killed. None if it has not ended
        `killed_s` after that."""
        code = await self._poll(grace_s)
        if code is None:
            self.process.kill()
            code = await self._poll(killed_s)
        return code

    async def _poll(self, within_s: float) -> int | None:
        """Its exit code; None if it has not ended in time. A thread that waits for the process
        could not be ended either, and would keep the service."""
        try:
            async with asyncio.timeout(within_s):
                while self.process.poll() is None:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            pass
        return self.process.poll()

    def close(self) -> None:
        """Close what is shared with it. When its socket is closed, the process exits."""
        self.connection.close()
        self.stacks.close()


def start_engine(clock: Clock, listener: socket.socket | None = None) -> EngineProcess:
    """Start an engine process, which waits for a Launch message. Further gateway processes connect
    to `listener`. Raises OSError."""
    begun_ns = clock.now_ns()
    with contextlib.ExitStack() as on_error, contextlib.ExitStack() as theirs_only:
        ours, theirs = socket.socketpair()
        on_error.callback(ours.close)
        theirs_only.callback(theirs.close)
        heartbeat_fd = shared_file("phasescope-heartbeat")
        theirs_only.callback(os.close, heartbeat_fd)
        heartbeat = HeartbeatReader(heartbeat_fd)
        stacks = on_error.enter_context(FileIO(shared_file("phasescope-stacks"), "r+"))
        shared = {
            "--fd": theirs.fileno(),
            "--pulse-fd": heartbeat_fd,
            "--stacks-fd": stacks.fileno(),
            **({} if listener is None else {"--listen-fd": listener.fileno()}),
        }
        arguments = [word for flag, number in shared.items() for word in (flag, str(number))]
        process = subprocess.Popen(
            (sys.executable, "-m", "service.cli.main", "engine-process", *arguments),
            pass_fds=tuple(shared.values()),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # signals to our group are for us: we drain first
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        on_error.pop_all()
    return EngineProcess(process, ours, begun_ns, heartbeat, stacks)
