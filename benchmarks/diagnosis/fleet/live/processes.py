"""Nodes and a gateway of a drill, as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.diagnosis.fleet.live.proxy import SlowLink
from lab.load.processes import ended, free_port, free_ports

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
    """The parts of the fleet by name: nodes, and the links that can be made slow. `watched` is
    asked what is wrong."""

    gateway: Process
    nodes: dict[str, Process]
    links: dict[str, SlowLink]
    watched: Process
    model: str


@contextlib.contextmanager
def routed(
    folder: Path, model: str, names: Sequence[str], environments: Mapping[str, Mapping[str, str]]
) -> Iterator[Fleet]:
    """Engines that a gateway chooses from, each behind a link. `environments` has more variables
    for some. Requests are dealt out, so that each engine has as many: the default policy would
    leave the machine's least busy engine nearly all of so few."""
    with contextlib.ExitStack() as stack:
        started = Started(stack, folder, model)
        nodes: dict[str, Process] = {}
        links: dict[str, SlowLink] = {}
        lines = []
        for name in names:
            port = free_port()
            nodes[name] = started.node(name, port, (), environments.get(name, {}))
            links[name] = stack.enter_context(SlowLink(port))
            lines += [f"[engines.{name}]", f'address = "127.0.0.1:{links[name].port}"']
        gateway = started.gateway(lines, "--routing", "round_robin")
        yield Fleet(gateway, nodes, links, gateway, model)


@contextlib.contextmanager
def apart(folder: Path, model: str, *decode_flags: str) -> Iterator[Fleet]:
    """An engine that computes all prompts, one that decodes them and is watched, and the link of
    their KV."""
    with contextlib.ExitStack() as stack:
        started = Started(stack, folder, model)
        *ports, kv_port = free_ports(3)
        listens = ("--role", "prefill", "--kv-listen", f"127.0.0.1:{kv_port}")
        prefill = started.node("prefill", ports[0], listens, {})
        decode = started.node("decode", ports[1], ("--role", "decode", *decode_flags), {})
        link = stack.enter_context(SlowLink(kv_port))
        lines = [
            "[engines.prefill]",
            f'address = "127.0.0.1:{ports[0]}"',
            f'kv_address = "127.0.0.1:{link.port}"',
            "[engines.decode]",
            f'address = "127.0.0.1:{ports[1]}"',
        ]
        gateway = started.gateway(lines, "--prefill-split", "always")
        nodes = {"prefill": prefill, "decode": decode}
        yield Fleet(gateway, nodes, {"kv": link}, decode, model)


@dataclass(frozen=True)
class Started:
    """Processes of one fleet, which end with `stack`."""

    stack: contextlib.ExitStack
    folder: Path
    model: str
    nodes: list[Process] = field(default_factory=list)

    @property
    def _key(self) -> Path:
        path = self.folder / "fleet.key"
        path.write_text("0123456789abcdef0123456789abcdef\n")
        return path

    def node(
        self, name: str, port: int, flags: Sequence[str], environment: Mapping[str, str]
    ) -> Process:
        words = ["engine", "--listen", f"127.0.0.1:{port}", "--key-file", str(self._key), *flags]
        one = self._start([*words, "--threads", "1", "--no-root-cause"], name, environment)
        self.nodes.append(one)
        return one

    def gateway(self, lines: Sequence[str], *flags: str) -> Process:
        """Start a gateway of the engines that `lines` list; once all are ready."""
        engines = self.folder / "engines.toml"
        engines.write_text("\n".join([f'key_file = "{self._key.name}"', *lines, ""]))
        gateway = self._start(["serve", "--engines", str(engines), *flags], "gateway", {})
        for one in (*self.nodes, gateway):
            _wait_ready(one)
        return gateway

    def _start(self, words: list[str], name: str, environment: Mapping[str, str]) -> Process:
        one = _start([*words, "--model", self.model], self.folder / f"{name}.log", environment)
        self.stack.callback(ended, one.popen)
        return one


def _start(words: list[str], log: Path, environment: Mapping[str, str]) -> Process:
    port = free_port()
    command = [sys.executable, "-m", "service.cli.main", *words, "--port", str(port)]
    with log.open("wb") as file:
        popen = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    return Process(popen, f"http://127.0.0.1:{port}")


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
