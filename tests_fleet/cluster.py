"""A cluster of Ray on loopback, a fleet on it, and the processes of both."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.support.servers.server import eventually, free_port
from tests_fleet.environments import ROOT, environment, variables

_COMMAND_S = 240
DOC = ROOT / "docs" / "operate" / "fleet.md"


def documented(kind: str) -> str:
    """The first block of a kind in the section about Ray Serve."""
    section = DOC.read_text().split("## With Ray Serve\n")[1]
    found = re.search(rf"```{kind}\n(.*?)```", section, re.S)
    assert found is not None
    return found[1]


def _ray_start() -> list[str]:
    """As documented, for one machine."""
    (line,) = [one for one in documented("sh").splitlines() if " ray start " in one]
    usage, ray, *words = shlex.split(line)
    assert (usage, ray) == ("RAY_USAGE_STATS_ENABLED=0", "ray")
    return words


class Process(NamedTuple):
    """One that runs."""

    pid: int
    parent: int
    arguments: list[str]


def processes() -> list[Process]:
    """All of this machine; one that ends meanwhile is left out."""
    found: list[Process] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (folder / "cmdline").read_bytes().decode(errors="replace")
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                found.append(Process(int(folder.name), int(parent), arguments.split("\0")[:-1]))
    return found


def memory_bytes(pid: int) -> int:
    """Its proportional share of memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def phasescope_fleet(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`phasescope fleet ARGUMENTS`, to its end."""
    python = str(environment() / "bin" / "python")
    return subprocess.run(
        [python, "-m", "service.cli.main", "fleet", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )


class Cluster:
    """Ray on 127.0.0.2 with its own folder, port and token; in the place of 127.0.0.1 it takes an
    address of the machine."""

    def __init__(self) -> None:
        self.bin = environment() / "bin"
        # the paths of Ray's sockets are this folder's and 80 characters
        self.folder = Path(tempfile.mkdtemp(prefix="psf-", dir="/tmp"))
        self.address = f"127.0.0.2:{free_port()}"
        self.variables = variables() | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}

    def __enter__(self) -> Cluster:
        port = self.address.rpartition(":")[2]
        command: list[str | Path] = [self.bin / "ray", *_ray_start(), "--block", "--port", port]
        command += ["--node-ip-address", "127.0.0.2"]
        command += ["--num-cpus", "4", "--object-store-memory", "100000000"]
        command += ["--temp-dir", self.folder / "ray"]
        log = self.folder / "ray.log"
        with log.open("wb") as out:
            self._ray = subprocess.Popen(
                list(map(str, command)), env=self.variables, stdout=out, stderr=out
            )
        try:
            eventually(lambda: self._is_up(log), "a cluster of Ray", 120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_up(self, log: Path) -> bool:
        assert self._ray.poll() is None, log.read_text()
        return "Ray runtime started" in log.read_text()

    def __exit__(self, *_: object) -> None:
        self._ray.send_signal(signal.SIGTERM)
        try:
            self._ray.wait(60)
        except subprocess.TimeoutExpired:
            self._ray.kill()
            self._ray.wait()
        eventually(lambda: not self.processes(), "the end of Ray", 60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def phasescope(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`phasescope fleet ARGUMENTS` at this cluster."""
        return phasescope_fleet(*arguments, "--address", self.address, env=self.variables)

    def processes(self) -> list[Process]:
        """Of Ray itself, its workers included, without what these started."""
        every = processes()
        named = [
            one.pid for one in every
            if any(f"{self.folder}/ray" in word for word in one.arguments)
        ]  # fmt: skip
        return [one for one in every if one.pid in named or one.parent in named]


class Fleet:
    """A fleet of one gateway that is deployed from a file; `engines` is how many there are."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.port = cluster, free_port()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        self._key = cluster.folder / "fleet.key"
        self._key.write_text("0123456789abcdef0123456789abcdef")
        self.file = cluster.folder / "fleet.toml"

    def write(self, engines: int, more: str = "") -> None:
        """The documented file, with our port and a small model."""
        text = documented("toml")
        assert text.count("number = 2") == text.count("port = 8000") == 1
        text = text.replace("number = 2", f"number = {engines}")
        text = text.replace("port = 8000", f"port = {self.port}")
        self.file.write_text(
            f'model = "dummy:tiny"\ndrain_timeout_s = 60\n{text}'
            f'flags = ["--executor", "native"{more}]\n'
        )

    def deploy(self, engines: int, more: str = "") -> None:
        """As `write` has it."""
        self.write(engines, more)
        done = self.cluster.phasescope("deploy", str(self.file))
        assert done.returncode == 0, done.stdout + done.stderr

    def engines(self) -> list[dict[str, Any]]:
        """As the gateway sees them."""
        found: list[dict[str, Any]] = self.client.get("/debug/engines").json()["engines"]
        return found

    def ready(self) -> set[str]:
        """Names of engines that get requests."""
        with contextlib.suppress(httpx.TransportError):
            return {one["name"] for one in self.engines() if one["state"] == "ready"}
        return set()

    def wait_ready(self, engines: int) -> set[str]:
        """The names, when there are so many."""
        found: set[str] = eventually(
            lambda: len(names := self.ready()) == engines and names, f"{engines} engines", 180
        )
        return found

    def servers(self) -> list[Process]:
        """Processes of ours, all that know this fleet's key or its gateway's port, and below."""
        every = processes()
        mine = [one for one in every if "service.cli.main" in one.arguments[:4]]
        top = [
            one
            for one in mine
            if str(self._key) in one.arguments or str(self.port) in one.arguments
        ]
        pids = {one.pid for one in top}
        return [one for one in mine if one.pid in pids or one.parent in pids]

    def node_of(self, name: str) -> Process:
        (found,) = [one for one in self.servers() if name in one.arguments]
        return found

    def ask(self, request_id: str, **more: Any) -> httpx.Response:
        body = {"prompt": "Count:", "max_tokens": 8, "seed": 3, "ignore_eos": True, **more}
        headers = {"x-request-id": request_id}
        return self.client.post("/v1/completions", json=body, headers=headers)

    def works(self, request_id: str) -> bool:
        return self.ask(request_id).status_code == 200

    def stream(self, request_id: str, tokens: int) -> list[str]:
        """Lines of a long answer; httpx would break them at any of Unicode's line ends."""
        body = {
            "prompt": request_id, "max_tokens": tokens, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        headers = {"x-request-id": request_id}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        answer = httpx.post(url, json=body, headers=headers, timeout=120)
        return answer.content.decode().split("\n")

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    """Ended; a zombie counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
