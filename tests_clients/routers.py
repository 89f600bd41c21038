"""The routers of others, started as their documentation says, in front of servers of ours."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.clients.environments import environment
from tests.support.servers.server import eventually, free_port

_START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class RouterKind:
    """How a router is started."""

    name: str
    command: tuple[str, ...]


ROUTERS = (
    RouterKind("sglang-router", ("sglang-router", "launch")),
    RouterKind("vllm-router", ("vllm-router",)),
    RouterKind("smg", ("smg", "launch")),
)
# short, so that a worker that dies or comes back is seen within seconds
_WATCHFUL = (
    "--health-check-interval-secs", "1", "--health-check-timeout-secs", "1",
    "--health-failure-threshold", "1", "--health-success-threshold", "1",
    "--cb-timeout-duration-secs", "1", "--retry-max-retries", "3",
    "--retry-initial-backoff-ms", "50", "--retry-max-backoff-ms", "200",
)  # fmt: skip


@dataclass(frozen=True)
class Router:
    """A router that runs."""

    kind: RouterKind
    url: str
    client: httpx.Client
    log: Path


@contextlib.contextmanager
def routing(kind: RouterKind, workers: list[str]) -> Iterator[Router]:
    """The router over these servers, when it answers `/v1/models` or a chat."""
    port, metrics_port = free_port(), free_port()
    program = environment(kind.name) / "bin" / kind.command[0]
    command = [str(program), *kind.command[1:], "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(metrics_port), "--policy", "round_robin", *_WATCHFUL]
    command += ["--worker-urls", *workers]
    with tempfile.NamedTemporaryFile(prefix=f"phasescope-{kind.name}-", suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"
        try:
            with httpx.Client(base_url=url, timeout=60) as client:
                router = Router(kind, url, client, Path(log.name))
                eventually(lambda: _serves(router, process), kind.name, _START_TIMEOUT_S)
                yield router
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _serves(router: Router, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, router.log.read_text()[-3000:]
    try:
        return ask(router).status_code == 200
    except httpx.TransportError:
        return False


def ask(router: Router, **more: object) -> httpx.Response:
    """A chat of four tokens."""
    body = {
        "model": "dummy:tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        **more,
    }
    return router.client.post("/v1/chat/completions", json=body)
