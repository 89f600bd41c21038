"""A real vLLM server with the adapter in it, and what its front end told the sidecar."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from service.attach.wire import Role, Submitted, TurnedOff
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
)
from tests.attach.sidecar import Connection, Sidecar

CONTEXT_TOKENS = 512
_START_S = 600


class LiveServer:
    """One server; `story` reads on until a request has ended. `fronts` are its API servers, by
    their index."""

    def __init__(self, base_url: str, connections: list[Connection]) -> None:
        self.base_url = base_url
        self.client = httpx.Client(base_url=base_url, timeout=120)
        fronts = [one for one in connections if one.hello.role is Role.FRONT_END]
        self.fronts = sorted(fronts, key=lambda one: one.hello.index)
        self.front = self.fronts[0]
        self.core = next(one for one in connections if one.hello.role is Role.ENGINE_CORE)

    def story(self, request_id: str) -> Story:
        """All that the front end said of one request, which must have ended or be about to."""
        self.front.read_until(lambda one: any(_is_end(fact, request_id) for fact in one.facts))
        return Story(request_id, self.front)

    @property
    def turned_off(self) -> list[TurnedOff]:
        return [one for one in self.front.messages if isinstance(one, TurnedOff)]


class Story:
    """The facts of one request: exactly one of each, in the order of their stamps."""

    def __init__(self, request_id: str, front: Connection) -> None:
        facts = [fact for fact in front.facts if getattr(fact, "request_id", None) == request_id]
        self.kinds = [type(fact).__name__ for fact in facts]
        assert len(self.kinds) == len(set(self.kinds)), self.kinds
        self.accepted: RequestAccepted = _one(facts, RequestAccepted)
        self.ended: RequestEnded = _one(facts, RequestEnded)
        self.parsed: RequestParsed | None = _one(facts, RequestParsed)
        self.tokenized: RequestTokenized | None = _one(facts, RequestTokenized)
        self.submitted: list[Submitted] = [
            one
            for batch in front.batches
            for one in batch.submitted
            if one.request_id == request_id
        ]
        stamps = self.stamps
        assert stamps == sorted(stamps), stamps

    @property
    def stamps(self) -> list[int]:
        """Those of a request whose answer was not cut, in their order."""
        end = self.ended
        found = [
            self.accepted.at_ns,
            self.parsed and self.parsed.at_ns,
            self.tokenized and self.tokenized.at_ns,
            *(one.at_ns for one in self.submitted),
            *([end.received_ns, end.detokenized_ns] if end.detected_ns is None else []),
            end.at_ns,
        ]
        return [one for one in found if one is not None]


@contextmanager
def live_server(
    folder: Path, *flags: str, api_servers: int = 1, **variables: str
) -> Iterator[LiveServer]:
    """Starts the server, and stops it."""
    sidecar, port = Sidecar(folder / "attach.sock"), _free_port()
    command, more = _command(folder, api_servers)
    command += ["--model", os.environ["PHASESCOPE_TEST_MODEL"], "--served-model-name", "model"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", str(CONTEXT_TOKENS), *flags]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"} | more | variables
    environment["PHASESCOPE_ATTACH"] = str(folder / "attach.sock")
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        base_url = f"http://127.0.0.1:{port}"
        _until_ready(process, base_url, log)
        connections = [sidecar.accept() for _ in range(api_servers + 1)]
        for one in connections:
            one.read_until(lambda found: bool(found.messages))
        yield LiveServer(base_url, connections)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        sidecar.close()


def _command(folder: Path, api_servers: int) -> tuple[list[str], dict[str, str]]:
    """Several API servers need `vllm serve`, which asks for a distribution of the name vllm, and
    takes from its version that this is a CPU build."""
    if api_servers == 1:
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server"], {}
    version = os.environ["PHASESCOPE_TEST_VLLM"]
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (info / "METADATA").write_text(metadata)
    program = "from vllm.entrypoints.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", "--api-server-count", str(api_servers)]
    return command, {"PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{folder}"}


def _until_ready(process: subprocess.Popen[bytes], base_url: str, log: Path) -> None:
    for _ in range(_START_S):
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{base_url}/health", timeout=5).status_code == 200:
                    return
            continue
        raise AssertionError(f"vLLM ended:\n{log.read_text()[-4000:]}")
    raise AssertionError(f"vLLM does not start:\n{log.read_text()[-4000:]}")


def _one(facts: list[Fact], kind: type) -> Any:
    return next((fact for fact in facts if isinstance(fact, kind)), None)


def _is_end(fact: Fact, request_id: str) -> bool:
    return isinstance(fact, RequestEnded) and fact.request_id == request_id


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
