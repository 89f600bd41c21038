"""The sidecar in a process of its own, and short questions to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attach.processes import cpu_ns
from benchmarks.contract.client import HOST, NotSupported, call, now_ns
from benchmarks.contract.common import ticking
from benchmarks.peers.layout import REPOSITORY, last_line
from lab.drills.servers import pin, split_cores
from lab.load.processes import ended, free_port, tree_of

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
JOURNAL_FLAGS = ("--journal-memory", "256MiB")


def cli(*arguments: str) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "service.cli.main", *arguments]


class Sidecar:
    """`async with Sidecar() as sidecar:`, then `Vllm(attach_to=sidecar.socket)`. With `command` it
    starts the engine itself, in that `environment`."""

    command: Sequence[str] = ()
    environment: Mapping[str, str] | None = None

    def __init__(self, *flags: str) -> None:
        self.flags = (*JOURNAL_FLAGS, *flags)
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="sidecar-")
        self.folder = Path(self._folder.name)
        self.socket = self.folder / "attach.sock"
        self.log = self.folder / "sidecar.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the sidecar was not started"
        return self._process.pid

    @property
    def cpu_ns(self) -> int:
        """CPU time so far, of its helper processes too."""
        return cpu_ns(tree_of(self.pid))

    async def __aenter__(self) -> Sidecar:
        self.launch()
        try:
            await self.until_up()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def launch(self) -> None:
        """Start and do not wait."""
        command = cli("attach", "--socket", str(self.socket), "--port", str(self.port))
        command += ["--dump-dir", str(self.folder / "dumps"), *self.flags]
        command += ["--", *self.command] if self.command else []
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(self.environment or {})}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def until_up(self) -> None:
        """It listens and answers; an engine need not be there yet."""
        deadline_ns = now_ns() + int(READY_TIMEOUT_S * 1e9)
        async with ticking("starting the sidecar"):
            while not (self.socket.exists() and await self._answers("/health")):
                if self._process is None or self._process.poll() is not None:
                    raise NotSupported(f"the sidecar did not start: {last_line(self.log)}")
                if now_ns() > deadline_ns:
                    raise NotSupported("the sidecar was not up in time")
                await asyncio.sleep(0.1)
        pin(self.pid, split_cores().rest)

    async def until_attached(self, within_s: float = READY_TIMEOUT_S) -> None:
        """An engine is attached. With a `command` its start is waited for."""
        deadline_ns = now_ns() + int(within_s * 1e9)
        async with ticking("waiting for the engine to attach"):
            while not await self._answers("/ready"):
                if now_ns() > deadline_ns:
                    raise NotSupported(
                        f"no engine attached to the sidecar: {last_line(self.log)[:200]}"
                    )
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(ended, process, STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL: no chance to say goodbye."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    async def facts_of(self, request_id: str, timeout_s: float = 10.0) -> dict[str, Any] | None:
        """`/debug/requests/{id}` once the request has ended; None when it does not become known."""
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        while now_ns() < deadline_ns:
            status, found = await call(self.port, "GET", f"/debug/requests/{request_id}")
            if status == 200 and found["outcome"] != "running":
                known: dict[str, Any] = found
                return known
            await asyncio.sleep(0.1)
        return None

    async def get(self, path: str) -> Any:
        """The JSON of a page; NotSupported for anything but 200."""
        status, found = await call(self.port, "GET", path)
        if status != 200:
            raise NotSupported(f"the sidecar answered {path} with {status}: {str(found)[:200]}")
        return found

    async def _answers(self, path: str) -> bool:
        with contextlib.suppress(OSError, EOFError, ValueError):
            return (await call(self.port, "GET", path))[0] == 200
        return False
