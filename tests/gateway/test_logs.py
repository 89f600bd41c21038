"""Log lines as JSON: fields, trace ids, and nothing that a client sent."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.composition.logs import JsonFormatter, WithoutClientText
from service.config.settings import GatewayConfig
from service.gateway.generation.handler import GenerationHandler
from service.gateway.generation.state import GatewayState
from service.gateway.http.body_room import BodyMemoryBudget
from service.gateway.ingest.schemas import Operation
from telemetry.facts.clock import ManualClock, WallAnchor
from telemetry.facts.recorder import Lane
from telemetry.facts.records import RequestAccepted, RequestEnded
from telemetry.facts.traceparent import new_span_id
from telemetry.traces.otlp_config import service_resource
from telemetry.traces.spans import SpanBuilder
from tests.support.servers.server import Server, spawn
from tests.support.worlds.timelines import timeline_of

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "my prompt is a secret"


class Lines(logging.StreamHandler[io.StringIO]):
    """Log lines as the service writes them."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(io.StringIO())
        self.addFilter(WithoutClientText())
        self.setFormatter(formatter)

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture(params=["text", "json"])
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    is_json = request.param == "json"
    handler = Lines(JsonFormatter() if is_json else logging.Formatter("%(message)s"))
    log = logging.getLogger("phasescope.gateway")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def test_a_line_has_time_level_logger_and_message() -> None:
    """In UTC, to the microsecond."""
    record = logging.LogRecord("phasescope.otlp", logging.WARNING, "", 0, "%d lost", (3,), None)
    record.created = 1_769_903_999.25

    assert json.loads(JsonFormatter().format(record)) == {
        "timestamp": "2026-01-31T23:59:59.250000Z",
        "level": "WARNING",
        "logger": "phasescope.otlp",
        "message": "3 lost",
    }


def test_an_error_that_concerns_no_request_has_its_message() -> None:
    """A full disk should say so."""
    handler = Lines(JsonFormatter())
    try:
        raise OSError("no space left")
    except OSError as error:
        caught = (OSError, error, error.__traceback__)
    handler.handle(logging.LogRecord("x", logging.ERROR, "", 0, "no dump", (), caught))

    assert "no space left" in json.loads(handler.text)["exception.stacktrace"]


def test_an_error_in_a_request_names_its_root_span_and_quotes_nothing(lines: Lines) -> None:
    """The ids are those of the span that is exported later."""
    accepted, ended = fail_a_request()
    root = SpanBuilder(service_resource("svc"), new_span_id).build(
        timeline_of([accepted, ended]), WallAnchor(0, 0)
    )[0]
    assert root.context is not None

    assert SECRET not in lines.text
    assert "ValueError" in lines.text
    assert "in receive" in lines.text  # the stack is there
    if isinstance(lines.formatter, JsonFormatter):
        line = json.loads(lines.text)
        assert line["trace_id"] == f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
        assert line["span_id"] == f"{root.context.span_id:016x}"
        assert line["request_id"] == "r1"


def fail_a_request() -> tuple[RequestAccepted, RequestEnded]:
    """The facts of a request that ends in an error of ours, which quotes the client."""
    lane = Lane()
    state = SimpleNamespace(
        lane=lane,
        clock=ManualClock(1),
        config=GatewayConfig(),
        bodies=BodyMemoryBudget(),
        drain=SimpleNamespace(active=False),
        number=0,
    )
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"traceparent", PARENT.encode()), (b"content-length", b"9")],
        "state": {"request_id": "r1"},
    }

    async def receive() -> Any:
        raise ValueError(SECRET)

    async def send(message: Any) -> None:
        pass

    async def run() -> None:
        handler = GenerationHandler(cast(GatewayState, state), Operation.TEXT, scope, receive, send)
        await handler.run()

    asyncio.run(run())
    accepted, ended = lane.drain()
    assert isinstance(accepted, RequestAccepted)
    assert isinstance(ended, RequestEnded)
    return accepted, ended


def test_a_server_with_json_logs_writes_nothing_else() -> None:
    """From its first line to its last; how it does is at INFO, what is wrong above."""
    flags = ("--model", "dummy:tiny", "--log-format", "json")
    with Server(*flags, "--otlp-endpoint", "http://127.0.0.1:9") as server:
        server.completion(max_tokens=2)
        server.process.terminate()
        server.process.wait(20)
        found = [json.loads(line) for line in server.log().splitlines()]

    for line in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["timestamp"])
    said = [line["message"] for line in found if line["level"] == "INFO"]
    assert any(line.startswith("ready in ") for line in said)
    assert said[-1] == "stopped"
    lost = [line for line in found if "do not reach" in line["message"]]
    assert {line["level"] for line in lost} == {"WARNING"}


def test_a_start_that_is_refused_says_so_in_json(tmp_path: Any) -> None:
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = spawn(
            "serve", "--model", str(tmp_path / "none"), "--log-format", "json", stderr=sink
        )
        assert process.wait(60) == 2
    (line,) = log.read_text().splitlines()

    assert json.loads(line)["level"] == "CRITICAL"
