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
    """How a router is started; `apart` is its flag for prefill and decode on two servers."""

    name: str
    command: tuple[str, ...]
    apart: str


ROUTERS = (
    RouterKind("sglang-router", ("sglang-router", "launch"), "--pd-disaggregation"),
    RouterKind("vllm-router", ("vllm-router",), "--vllm-pd-disaggregation"),
    RouterKind("smg", ("smg", "launch"), "--pd-disaggregation"),
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


def routing(kind: RouterKind, workers: list[str]) -> contextlib.AbstractContextManager[Router]:
    """The router over these servers, when it answers a chat."""
    return _started(kind, ["--worker-urls", *workers], {200})


def routing_apart(
    kind: RouterKind, prefill: str, decode: str
) -> contextlib.AbstractContextManager[Router]:
    """The router over a server for prefill and one for decode, when it passes on what they say."""
    return _started(kind, [kind.apart, "--prefill", prefill, "--decode", decode], {200, 400})


@contextlib.contextmanager
def _started(kind: RouterKind, servers: list[str], serves: set[int]) -> Iterator[Router]:
    """The router, when it answers a chat with one of these statuses."""
    port, metrics_port = free_port(), free_port()
    program = environment(kind.name) / "bin" / kind.command[0]
    command = [str(program), *kind.command[1:], "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(metrics_port), "--policy", "round_robin", *_WATCHFUL]
    command += servers
    with tempfile.NamedTemporaryFile(prefix=f"phasescope-{kind.name}-", suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"
        try:
            with httpx.Client(base_url=url, timeout=60) as client:
                router = Router(kind, url, client, Path(log.name))
                eventually(lambda: _is_up(router, process, serves), kind.name, _START_TIMEOUT_S)
                yield router
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_up(router: Router, process: subprocess.Popen[bytes], serves: set[int]) -> bool:
    assert process.poll() is None, router.log.read_text()[-3000:]
    try:
        return ask(router).status_code in serves
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
