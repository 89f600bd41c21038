"""A real sidecar in a process of its own, and questions to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.servers.server import eventually

_READY = re.compile(r"the sidecar is ready at (http://\S+?)[,;]")
_STOP_S = 30
COMMAND = (sys.executable, "-m", "service.cli.main", "attach")


class SidecarProcess:
    """`phasescope attach` with a socket in `folder`; with `command` it starts that too. If it is
    not `told` the path of the socket, it has one below `folder` that names its port."""

    def __init__(
        self, folder: Path, *flags: str, command: Sequence[str] = (), told: bool = True
    ) -> None:
        self.socket = folder / "attach.sock"
        more = ["--", *command] if command else []
        own = ["--port", "0", "--dump-dir", str(folder / "dumps")]
        own += ["--socket", str(self.socket)] if told else []
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.process = subprocess.Popen(
            [*COMMAND, *own, "--journal-memory", "8MiB", "--no-root-cause", *flags, *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stderr is not None
        self.said = ""
        while (found := _READY.search(self.said)) is None:
            line = self.process.stderr.readline()
            assert line, f"the sidecar did not start: {self.said}"
            self.said += line
        self.url = found.group(1)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return json.load(answer)

    def text(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            body: bytes = answer.read()
        return body.decode()

    def status(self, path: str, method: str = "GET", **headers: str) -> int:
        asked = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def attached(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/debug/attach")
        return found

    def eventually_knows(self, request_id: str) -> None:
        """Wait for the timeline of a request that has ended."""

        def is_known() -> bool:
            listed = self.get("/debug/requests?since=0&limit=200")["requests"]
            return any(one["request_id"] == request_id for one in listed)

        eventually(is_known, f"the timeline of {request_id}")

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code."""
        try:
            return self.process.wait(_STOP_S)
        finally:
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()
