"""A vLLM in processes of its own, with or without the plugin.

vLLM is three processes: API server, engine core (its scheduler), and a worker that computes. The
worker's threads have the first core to themselves; API server, engine core, sidecar and clients
share the others, as a server with a GPU leaves its CPU to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.attach.overlay import python_path, write_overlay
from benchmarks.attach.processes import CORE_NAME, WORKER_NAME, named
from benchmarks.contract.client import HOST, NotSupported, call, now_ns
from benchmarks.contract.common import ticking
from benchmarks.peers.layout import REPOSITORY, default_root, last_line
from benchmarks.peers.recipes import Setup, recipes, setup_of
from lab.drills.servers import pin, split_cores
from lab.load.processes import ended, free_port, lives, tree_of
from service.attach.wire import SOCKET_VARIABLE

BLOCK_TOKENS = 32  # the least that its attention takes on this CPU
BLOCK_FLAGS = ("--block-size", str(BLOCK_TOKENS))
READY_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 30.0


def peer_setup() -> Setup:
    """One compute thread for vLLM: the first core."""
    return setup_of(default_root(), 1, "auto", "")


class Vllm:
    """`async with Vllm("--max-num-seqs", "8", attach_to=socket) as server:`. Without `attach_to`
    the plugin is not there at all. `first_on_path` are folders before ours on PYTHONPATH."""

    def __init__(
        self,
        *flags: str,
        attach_to: Path | None = None,
        first_on_path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        cached: bool = True,
    ) -> None:
        """`cached`: with prefix caching, vLLM's own default, which the comparison of peers turns
        off."""
        self.port = free_port()
        self.flags = ((*BLOCK_FLAGS, "--enable-prefix-caching") if cached else BLOCK_FLAGS) + flags
        self.attach_to = attach_to
        self._first_on_path, self._more = tuple(first_on_path), dict(environment or {})
        self._folder = tempfile.TemporaryDirectory(prefix="attach-")
        self.log = Path(self._folder.name) / "vllm.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.core_pid = self.worker_pid = 0

    @property
    def is_attached(self) -> bool:
        return self.attach_to is not None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The API server's."""
        assert self._process is not None, "vLLM was not started"
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        return tree_of(self.pid)

    @property
    def is_alive(self) -> bool:
        """All of it: vLLM ends as a whole when its engine core does."""
        return self._process is not None and self._process.poll() is None and lives(self.core_pid)

    def command(self) -> list[str]:
        recipe = recipes(peer_setup())[0]
        if not recipe.needs.exists():
            raise NotSupported("vLLM is missing: python -m benchmarks.peers.install vllm")
        return [*recipe.start(self.port, None).command, *self.flags]

    def environment(self) -> dict[str, str]:
        """The environment of the process; with the plugin only if it is attached."""
        recipe = recipes(peer_setup())[0]
        found = {**os.environ, **recipe.start(self.port, None).environment, **self._more}
        found.pop("PYTHONPATH", None)
        found.pop(SOCKET_VARIABLE, None)
        if self.attach_to is not None:
            overlay = write_overlay(Path(self._folder.name) / "overlay")
            found["PYTHONPATH"] = python_path([*self._first_on_path, overlay, REPOSITORY])
            found[SOCKET_VARIABLE] = str(self.attach_to)
        return found

    async def __aenter__(self) -> Vllm:
        self.launch()
        try:
            await self.until_ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def launch(self) -> None:
        """Start and do not wait."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(), env=self.environment(), cwd=self._folder.name,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def until_ready(self) -> None:
        """NotSupported says why it did not start."""
        deadline_ns = now_ns() + int(READY_TIMEOUT_S * 1e9)
        async with ticking("starting vLLM", lambda: last_line(self.log)[-90:]):
            while not await self._answers():
                if self._process is None or self._process.poll() is not None:
                    raise NotSupported(f"vLLM did not start: {self.error()}")
                if now_ns() > deadline_ns:
                    raise NotSupported(f"vLLM was not ready in {READY_TIMEOUT_S:.0f} s")
                await asyncio.sleep(0.2)
        pids = self.pids
        core, worker = named(pids, CORE_NAME), named(pids, WORKER_NAME)
        if core is None or worker is None:
            raise NotSupported("the engine core or the worker of vLLM was not found")
        self.core_pid, self.worker_pid = core, worker
        rest = split_cores().rest
        for pid in pids:
            if pid != worker:
                pin(pid, rest)

    async def until_answers(self) -> None:
        """For one that somebody else started with its `command`."""
        deadline_ns = now_ns() + int(READY_TIMEOUT_S * 1e9)
        while not await self._answers():
            if now_ns() > deadline_ns:
                raise NotSupported(f"vLLM did not answer in {READY_TIMEOUT_S:.0f} s")
            await asyncio.sleep(0.5)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL for whatever is left of its processes."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(ended, process, STOP_TIMEOUT_S)

    def error(self) -> str:
        """The last line of its log that names an error."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["no log"])[-1][-300:]

    async def _answers(self) -> bool:
        with contextlib.suppress(OSError, EOFError, ValueError):
            return (await call(self.port, "GET", "/health"))[0] == 200
        return False
