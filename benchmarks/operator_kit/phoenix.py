"""Arize Phoenix in an environment of its own: a back end with a page and an API for spans.

Installed once, at a pinned version, below `~/.cache/phasescope/operator_kit`; some 850 MB, and a
minute or two. It keeps its spans in a folder that goes away with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.contract.client import HOST
from benchmarks.contract.common import say
from lab.load.processes import ended

VERSION = "20.26.1"
PROJECT = "openinference.project.name"  # the resource attribute by which Phoenix sorts spans
_START_S, _PAGE = 120.0, 1000


class Phoenix:
    """`with Phoenix() as phoenix:` sends spans to `phoenix.endpoint[wire]`."""

    def __init__(self, ports: tuple[int, int]) -> None:
        http, grpc = ports
        self.url = f"http://{HOST}:{http}"
        self.endpoint = {"http/protobuf": self.url, "grpc": f"http://{HOST}:{grpc}"}
        self._ports = {"PHOENIX_PORT": str(http), "PHOENIX_GRPC_PORT": str(grpc)}

    def __enter__(self) -> Phoenix:
        program = installed() / "bin" / "phoenix"
        self._folder = tempfile.TemporaryDirectory(prefix="phoenix-")
        self._log = Path(self._folder.name) / "log"
        own = {"PHOENIX_WORKING_DIR": self._folder.name, "PHOENIX_TELEMETRY_ENABLED": "false"}
        own |= {"PHOENIX_HOST": HOST, "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false", **self._ports}
        environment = {key: value for key, value in os.environ.items() if key[:5] != "OTEL_"}
        with self._log.open("wb") as sink:
            self._process = subprocess.Popen(
                [program, "serve"], env=environment | own, stdout=sink, stderr=sink,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        ended(self._process)
        self._folder.cleanup()

    def spans(self, project: str) -> list[dict[str, Any]]:
        """All spans of a project, from its REST API; none if there is no such project."""
        path = f"/v1/projects/{urllib.parse.quote(project)}/spans?limit={_PAGE}"
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            try:
                page = self._get(path + cursor)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return []
                raise
            found += page["data"]
            if not page.get("next_cursor"):
                return found
            cursor = f"&cursor={urllib.parse.quote(page['next_cursor'])}"

    def wait_for(self, project: str, count: int, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """The spans of a project when they are `count`, else those that came in time."""
        deadline_s = time.monotonic() + timeout_s
        while len(found := self.spans(project)) < count and time.monotonic() < deadline_s:
            time.sleep(0.5)
        return found

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def _until_ready(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise SystemExit(f"Phoenix ended: {self._log.read_text()[-2000:]}")
            try:
                self._get("/v1/projects")
            except (OSError, urllib.error.URLError):
                time.sleep(0.3)
            else:
                return
        raise SystemExit(f"Phoenix was not ready within {_START_S:.0f} s")


def installed() -> Path:
    """Its environment, made if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "phasescope" / "operator_kit" / f"phoenix-{VERSION}"
    if (folder / "installed").exists():
        return folder
    say(f"installing Phoenix {VERSION}; this takes a minute or two")
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "pip"), "install", "-q", f"arize-phoenix=={VERSION}"],
    ]
    for command in commands:
        if subprocess.run(["nice", *command]).returncode:
            raise SystemExit(f"Phoenix cannot be installed: {' '.join(command)} failed")
    (folder / "installed").touch()
    return folder
