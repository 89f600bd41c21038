"""A real phasescope server in its own processes, for end-to-end tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

START_TIMEOUT_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def spawn(
    *args: str, env: dict[str, str] | None = None, launcher: tuple[str, ...] = (), **popen: Any
) -> subprocess.Popen[bytes]:
    """`LAUNCHER phasescope ARGS` as a child process."""
    return subprocess.Popen(
        [*launcher, sys.executable, "-m", "service.cli.main", *args],
        env={**os.environ, **(env or {})},
        **popen,
    )


def eventually(condition: Any, what: str, timeout_s: float = 20.0, every_s: float = 0.02) -> Any:
    """Poll until `condition()` is true; the generous limit only turns a hang into a failure."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every_s)
    raise AssertionError(f"{what} did not happen within {timeout_s} s")


class Server:
    """`with Server("--max-num-seqs", "4") as server:` ..."""

    command = "serve"
    launcher: tuple[str, ...] = ()

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._dumps = tempfile.TemporaryDirectory(prefix="phasescope-test-")
        folder = () if "--dump-dir" in args else ("--dump-dir", self._dumps.name)
        # which one `auto` takes hangs on the machine, and with it tokens and speed
        executor = () if "--executor" in args else ("--executor", "native")
        self.args = (*folder, *executor, *self._of_little(args), *args)
        self._env = env
        self._log = tempfile.NamedTemporaryFile(prefix="phasescope-test-", suffix=".log")  # noqa: SIM115
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def _of_little(self, args: tuple[str, ...]) -> tuple[str, ...]:
        """The smallest model needs no second thread, nor a second process that reads bodies: each
        would take the CPU that the start of the others needs."""
        if self.command != "serve" or "dummy:tiny" not in args or "--engines" in args:
            return ()
        flags = ("--threads", "--ingest-workers")
        return tuple(word for flag in flags if flag not in args for word in (flag, "1"))

    def __enter__(self) -> Server:
        command = (self.command, "--port", str(self.port), *self.args)
        self.process = spawn(*command, env=self._env, launcher=self.launcher, stderr=self._log)
        try:
            # seldom: client and gateway would take the CPU that the start needs
            eventually(self.is_ready_or_dead, "readiness", START_TIMEOUT_S, every_s=0.1)
            assert self.process.poll() is None, self.log()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()
        self._dumps.cleanup()

    def log(self) -> str:
        return Path(self._log.name).read_text()

    def is_ready(self) -> bool:
        try:
            return self.client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def is_ready_or_dead(self) -> bool:
        return self.process.poll() is not None or self.is_ready()

    def snapshot(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.get("/debug/snapshot").json()
        return answer

    def is_empty(self) -> bool:
        now = self.snapshot()
        return (now["running"], now["waiting"], now["blocks_used"]) == (0, 0, 0)

    def facts_of(self, request_id: str) -> dict[str, Any]:
        """`/debug/requests/{id}` once the request has ended."""

        def ended() -> dict[str, Any] | None:
            answer = self.client.get(f"/debug/requests/{request_id}")
            if answer.status_code != 200:
                return None
            body: dict[str, Any] = answer.json()
            return body if body["outcome"] != "running" else None

        found: dict[str, Any] = eventually(ended, f"the end of {request_id}")
        return found

    def completion(self, **body: Any) -> httpx.Response:
        body.setdefault("prompt", "The capital of France is")
        return self.client.post("/v1/completions", json=body)

    @contextlib.contextmanager
    def fixed_budget(self, tokens: int) -> Iterator[None]:
        """A step may have so many tokens meanwhile; before and after, it follows the targets."""
        self._set_budget(tokens)
        try:
            yield
        finally:
            self._set_budget("auto")

    def _set_budget(self, tokens: int | str) -> None:
        change = self.client.put("/debug/limits", json={"max_batched_tokens": tokens})
        change.raise_for_status()


def sse_events(lines: Any) -> list[Any]:
    """Decoded `data:` events of a stream, `[DONE]` as that string."""
    events: list[Any] = []
    for line in lines:
        if line.startswith("data: "):
            data = line[len("data: ") :]
            events.append(data if data == "[DONE]" else json.loads(data))
    return events
