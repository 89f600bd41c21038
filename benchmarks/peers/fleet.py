"""Servers that are started once and stand still unless it is their turn.

A server that waits for requests may spin, and all share a few cores. So everyone but the
server being measured is stopped with SIGSTOP: itself and the processes it started, nobody else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import memory_kib
from benchmarks.peers.layout import HOST, REPOSITORY, Layout, PeerError, last_line, say
from benchmarks.peers.recipes import Recipe
from lab.load.processes import ended, free_port, tree_of

READY_TIMEOUT_S = 900.0
_STOP_TIMEOUT_S = 20.0
_SETTLE_S = 0.5
_ROOM_GIB = 2.5


class Server:
    """One process tree."""

    def __init__(self, recipe: Recipe, budget: int | None, layout: Layout) -> None:
        self.recipe, self.budget = recipe, budget
        self.label = recipe.name if budget is None else f"{recipe.name}@{budget}"
        self.log = layout.logs / f"server-{self.label}.log"
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.start = recipe.start(self.port, budget)
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start, wait until it answers, and try one request. PeerError says why it did not."""
        if not self.recipe.needs.exists():
            raise PeerError(f"{self.label}: {self.recipe.needs} is missing; install it first")
        if _available_gib() < _ROOM_GIB:
            raise PeerError(
                f"{self.label}: {_available_gib():.1f} GiB of memory are left; start fewer servers"
            )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                self.start.command,
                cwd=REPOSITORY,
                env={**os.environ, **self.start.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._until_ready()
        self._try()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        time.sleep(_SETTLE_S)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for whatever is left of its processes."""
        if self._process is not None:
            ended(self._process, _STOP_TIMEOUT_S)
        self._process = None

    def tree(self) -> list[int]:
        """The process and all that descend from it, parents first."""
        return [] if self._process is None else tree_of(self._process.pid)

    def resident_mib(self) -> float:
        """Memory of the whole tree; shared pages count once for each process."""
        pages = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1024**2

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _until_ready(self) -> None:
        assert self._process is not None
        begin_s = told_s = time.monotonic()
        while time.monotonic() - begin_s < READY_TIMEOUT_S:
            if self._process.poll() is not None:
                raise PeerError(f"{self.label} ended: {last_line(self.log, 2)} (log: {self.log})")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(self.url + self.start.ready, timeout=5).status_code == 200:
                    return
            if time.monotonic() - told_s > 10:
                told_s = time.monotonic()
                say(f"  {self.label}: {told_s - begin_s:.0f} s  {last_line(self.log)[-100:]}")
            time.sleep(0.2)
        raise PeerError(f"{self.label} was not ready within {READY_TIMEOUT_S:.0f} s: {self.log}")

    def _try(self) -> None:
        """The first request, which builds what is built lazily."""
        body: dict[str, Any] = {"prompt": "The server says", "max_tokens": 8, "temperature": 0}
        body |= {"ignore_eos": True, "model": self.start.model or self.said_model()}
        body |= self.start.extra_body
        kept = {key: value for key, value in body.items() if value is not None}
        answer = httpx.post(f"{self.url}/v1/completions", json=kept, timeout=READY_TIMEOUT_S)
        if answer.status_code != 200:
            raise PeerError(f"{self.label} refuses a request: {answer.text[:200]}")

    def said_model(self) -> str:
        found = httpx.get(f"{self.url}/v1/models", timeout=30).json()
        return str(found["data"][0]["id"])


class Fleet:
    """`with Fleet(servers) as fleet`: all started, but for those that fail, and standing still."""

    def __init__(self, servers: list[Server]) -> None:
        self._wanted = servers
        self.running: list[Server] = []
        self.failed: dict[str, str] = {}

    def __enter__(self) -> Fleet:
        try:
            for server in self._wanted:
                self._launch(server)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._wanted:
            server.stop()

    def _launch(self, server: Server) -> None:
        begin_s = time.monotonic()
        say(f"starting {server.label} (log: {server.log})")
        try:
            server.launch()
        except (PeerError, httpx.HTTPError) as error:
            self.failed[server.label] = str(error)
            say(f"  {error}")
            server.stop()
            return
        server.pause()
        self.running.append(server)
        say(f"  {server.label} is ready after {time.monotonic() - begin_s:.0f} s")

    @contextlib.contextmanager
    def turn(self, server: Server) -> Any:
        """It alone runs."""
        server.resume()
        try:
            yield
        finally:
            server.pause()


def _available_gib() -> float:
    return memory_kib("MemAvailable") / (1 << 20)
