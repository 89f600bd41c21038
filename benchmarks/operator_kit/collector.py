"""rotel, an OpenTelemetry agent from PyPI, as the collector between a server and a back end.

It takes spans over gRPC and HTTP, batches them, and passes them on over OTLP, as the OpenTelemetry
Collector does; the versions of the development requirements are used.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.contract.client import HOST
from lab.load.processes import ended, free_ports

_START_S = 20.0


class Collector:
    """`with Collector(back_end) as collector:` passes on over gRPC what comes to
    `collector.endpoint[wire]`."""

    def __init__(self, back_end: str) -> None:
        self._back_end = back_end
        self._grpc, self._http = free_ports(2)
        self.endpoint = {
            "grpc": f"http://{HOST}:{self._grpc}",
            "http/protobuf": f"http://{HOST}:{self._http}",
        }

    def __enter__(self) -> Collector:
        self._log = tempfile.NamedTemporaryFile(prefix="rotel-", suffix=".log")
        command = [str(_program()), "start", "--exporter", "otlp"]
        command += ["--otlp-exporter-endpoint", self._back_end]
        command += ["--otlp-exporter-protocol", "grpc"]
        command += ["--otlp-grpc-endpoint", f"{HOST}:{self._grpc}"]
        command += ["--otlp-http-endpoint", f"{HOST}:{self._http}"]
        environment = {key: value for key, value in os.environ.items() if key[:5] != "OTEL_"}
        self._process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=self._log, start_new_session=True
        )
        deadline_s = time.monotonic() + _START_S
        while not all(map(_listens, (self._grpc, self._http))):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                text = Path(self._log.name).read_text()
                self.__exit__()
                raise SystemExit(f"the collector did not start: {text[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        ended(self._process)
        self._log.close()


def _program() -> Path:
    try:
        import rotel
    except ImportError:
        raise SystemExit("rotel is missing: make .venv/.dev installs it") from None
    return Path(rotel.__file__).parent / "rotel-agent"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
