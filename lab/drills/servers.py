"""The server of a drill: its processes, their cores, and short requests to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lab.drills.client import HOST
from telemetry.facts.clock import Clock

Say = Callable[[str], None]

_READY_WITHIN_S = 180.0
_STOP_WITHIN_S = 15.0
_POLL_S = 0.05
_ANSWER_WITHIN_S = 30.0
_CLIENT_NICE = 5
_KEYS = ("PHASESCOPE_API_KEY", "PHASESCOPE_DEBUG_KEY")
"""Variables that a drill's server does not get: what asks it knows no key."""
JOURNAL_FLAGS = ("--journal-memory", "256MiB")
TERMINATED = 128 + signal.SIGTERM


class DidNotStart(Exception):
    """The server ended before it was ready; the message is its last line."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the engine, and those of everything else; empty: nothing is pinned."""

    engine: frozenset[int] = frozenset()
    rest: frozenset[int] = frozenset()


def split_cores() -> Cores:
    """The first core is the engine's. Nothing is pinned on a machine with one core."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        return Cores()
    return Cores(frozenset(usable[:1]), frozenset(usable[1:]))


def pin(pid: int, cores: frozenset[int]) -> None:
    """Pin all threads of a process, and those that they start later; nothing if it has ended."""
    if not cores:
        return
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)


@contextlib.contextmanager
def pinned_here(cores: frozenset[int]) -> Iterator[None]:
    """Pin this process, which runs the clients, to the cores that are not the engine's. With a
    higher priority than the gateway's where permitted, so that the clients' lag is not counted as
    the gateway's."""
    if not cores:
        yield
        return
    before, before_nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    pin(os.getpid(), cores)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, max(-20, before_nice - _CLIENT_NICE))
    try:
        yield
    finally:
        pin(os.getpid(), frozenset(before))
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before_nice)


def cancel_on_sigterm() -> None:
    """Let SIGTERM cancel this task, as an interrupt does, so that no server is left running."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(
        RuntimeError, ValueError
    ):  # not in the main thread, where signals come
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def call(
    port: int, method: str, path: str, within_s: float = _ANSWER_WITHIN_S
) -> tuple[int, bytes]:
    """Send a short request; returns status and body. Raises OSError, TimeoutError included."""
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n"
            writer.write((head + "content-length: 0\r\n\r\n").encode())
            raw = await reader.read()
        finally:
            writer.close()
    top, _, body = raw.partition(b"\r\n\r\n")
    words = top.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise ConnectionError(f"{path}: the server closed the connection")
    return int(words[1]), body


class DrillServer:
    """`async with DrillServer(flags, folder, ...) as server:` in processes of its own.

    What the server writes goes below `folder`, its log included. It is started in a session of
    its own, so that an interrupt reaches only the drill, which ends the server in every case.
    """

    def __init__(
        self,
        flags: Sequence[str],
        folder: Path,
        clock: Clock,
        say: Say,
        env: Mapping[str, str] | None = None,
        cores: Cores | None = None,
    ) -> None:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        self.flags = tuple(flags)
        self.folder = folder
        self.engine_pid = 0
        self.ready_ns = 0
        self._clock = clock
        self._say = say
        self._env = dict(env or {})
        self._cores = cores or Cores()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The gateway's process id."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    async def __aenter__(self) -> DrillServer:
        try:
            self.launch()
            await self.until_ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        if self.engine_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.engine_pid, signal.SIGCONT)  # a stopped process cannot end
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            if not await self._has_ended(_STOP_WITHIN_S):
                process.kill()
        process.wait()

    def launch(self) -> None:
        """Start the processes and do not wait."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(self.port)]
        own = ["--dump-dir", str(self.folder / "dumps"), "--drain-timeout", "0.5"]
        inherited = {name: value for name, value in os.environ.items() if name not in _KEYS}
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *own, *self.flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**inherited, **self._env},
                start_new_session=True,
            )

    async def until_ready(self) -> None:
        """Wait until the server is ready. Raises DidNotStart."""
        begun_ns = reported_ns = self._clock.now_ns()
        while not await self._is_ready():
            if self.exit_code is not None:
                raise DidNotStart(self.last_line())
            now_ns = self._clock.now_ns()
            if now_ns - begun_ns > _READY_WITHIN_S * 1e9:
                raise DidNotStart(f"not ready within {_READY_WITHIN_S:g} s")
            if now_ns - reported_ns > 2_000_000_000:
                reported_ns = now_ns
                self._say(f"starting the server: {(now_ns - begun_ns) / 1e9:.0f} s")
            await asyncio.sleep(_POLL_S)
        self.ready_ns = self._clock.now_ns()
        self.engine_pid = int((await self.snapshot())["engine_pid"])
        pin(self.pid, self._cores.rest)
        pin(self.engine_pid, self._cores.engine)

    async def snapshot(self) -> dict[str, Any]:
        _, body = await call(self.port, "GET", "/debug/snapshot")
        found: dict[str, Any] = msgspec.json.decode(body)
        return found

    async def save_journal(self, path: Path) -> bool:
        """Save the flight recorder's journal into a file; False when the server does not answer."""
        try:
            status, body = await call(self.port, "GET", "/debug/journal")
        except OSError:
            return False
        if status != 200:
            return False
        await asyncio.to_thread(path.write_bytes, body)
        return True

    def last_line(self) -> str:
        """The last line of the server's log."""
        try:
            lines = (self.folder / "server.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    async def _is_ready(self) -> bool:
        try:
            return (await call(self.port, "GET", "/ready", 5.0))[0] == 200
        except OSError:
            return False

    async def _has_ended(self, within_s: float) -> bool:
        limit_ns = self._clock.now_ns() + int(within_s * 1e9)
        while self.exit_code is None and self._clock.now_ns() < limit_ns:
            await asyncio.sleep(_POLL_S)
        return self.exit_code is not None
