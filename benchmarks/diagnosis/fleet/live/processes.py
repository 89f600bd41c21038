"""Nodes and a gateway of a drill, as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagnosis.fleet.live.proxy import SlowLink

MODEL = "dummy:tiny"
_START_S = 180.0


@dataclass(frozen=True)
class Process:
    """A server; `engine_pid` is that of the engine process of a node."""

    popen: subprocess.Popen[bytes]
    url: str

    @property
    def engine_pid(self) -> int:
        """The child whose name says what it is. Raises LookupError while there is none."""
        pid = self.popen.pid
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                if b"engine-process" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        raise LookupError(f"process {pid} has no engine")

    def get(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: bytes = answer.read()
        return found


@dataclass(frozen=True)
class Fleet:
    """By name: nodes, and the links to them."""

    gateway: Process
    nodes: dict[str, Process]
    links: dict[str, SlowLink]


@contextlib.contextmanager
def fleet(
    folder: Path,
    names: Sequence[str],
    environments: Mapping[str, Mapping[str, str]],
) -> Iterator[Fleet]:
    """Started, and ended. `environments` has more variables for some nodes. Requests are dealt out,
    so that each engine has as many: the default policy would leave the machine's least busy engine
    nearly all of so few."""
    key = folder / "fleet.key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    with contextlib.ExitStack() as stack:
        nodes: dict[str, Process] = {}
        links: dict[str, SlowLink] = {}
        lines = [f'key_file = "{key.name}"']
        for name in names:
            port = _free_port()
            node = _start(
                [
                    "engine",
                    "--listen",
                    f"127.0.0.1:{port}",
                    "--key-file",
                    str(key),
                    "--no-root-cause",
                ],
                folder / f"{name}.log",
                environments.get(name, {}),
            )
            stack.callback(_end, node)
            links[name] = stack.enter_context(SlowLink(port))
            nodes[name] = node
            lines += [f"[engines.{name}]", f'address = "127.0.0.1:{links[name].port}"']
        engines = folder / "engines.toml"
        engines.write_text("\n".join([*lines, ""]))
        gateway = _start(
            ["serve", "--engines", str(engines), "--routing", "round_robin"],
            folder / "gateway.log",
            {},
        )
        stack.callback(_end, gateway)
        for one in (*nodes.values(), gateway):
            _wait_ready(one)
        yield Fleet(gateway, nodes, links)


def _start(words: list[str], log: Path, environment: Mapping[str, str]) -> Process:
    port = _free_port()
    command = [sys.executable, "-m", "service.cli.main", *words, "--port", str(port)]
    with log.open("wb") as file:
        popen = subprocess.Popen(
            [*command, "--model", MODEL],
            env={**os.environ, **environment},
            stdout=file,
            stderr=file,
        )
    return Process(popen, f"http://127.0.0.1:{port}")


def _end(process: Process) -> None:
    with contextlib.suppress(LookupError, OSError):
        os.kill(process.engine_pid, signal.SIGCONT)
    process.popen.send_signal(signal.SIGTERM)
    try:
        process.popen.wait(20)
    except subprocess.TimeoutExpired:
        process.popen.kill()
        process.popen.wait()


def _wait_ready(process: Process) -> None:
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s:
        if process.popen.poll() is not None:
            raise SystemExit(f"{process.popen.args} ended: its log says why")
        with contextlib.suppress(OSError):
            process.get("/ready")
            return
        time.sleep(0.2)
    raise SystemExit(f"{process.popen.args} was not ready in time")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
