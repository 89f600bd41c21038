"""The login that an OTLP endpoint may have goes to the receiver, and is shown nowhere."""

from __future__ import annotations

import json

import msgspec
import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from service.cli.main import main
from service.composition.metrics_wiring import build_pusher
from service.config.settings import (
    EngineConfig,
    GatewayConfig,
    ModelKind,
    ModelRef,
    ServeConfig,
    TracingConfig,
)
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.credentials import shown_text, shown_url
from telemetry.traces.otlp_config import exporter_from_config, wire_settings
from telemetry.traces.otlp_exporters import HEADERS_WRONG, Answer
from telemetry.traces.otlp_http import AnswerSession
from tests.support.asked import answering
from tests.support.servers.otlp_thread import offer, stop
from tests.support.servers.server import eventually, free_port
from tests.support.worlds.metrics_world import MetricsWorld, engine_started

WHOLE = "https://user:pa55@host:4318/v1/traces?token=shown"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (WHOLE, "https://host:4318/v1/traces"),
        ("http://localhost:4317", "http://localhost:4317"),
        ("localhost:4317", "localhost:4317"),
        ("user:pa55@host:4317", "host:4317"),
        ("user:pa55@host:4317//x", "host:4317//x"),
        ("//user:pa55@host/x#shown", "//host/x"),
        ("https://user:pa55@[::1]:4318/", "https://[::1]:4318/"),
        ("https://host/an@address", "https://host/an@address"),
        ("unix:///tmp/a@b.sock", "unix:///tmp/a@b.sock"),
        ("https://user:pa55/shown@host", "https://(not shown)"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_login_and_its_query(url: str, shown: str) -> None:
    """The rest is as it was."""
    assert shown_url(url) == shown


def test_a_request_has_the_login() -> None:
    """Over gRPC there is no place for one: a channel has a host and a port."""
    assert wire_settings(WHOLE, None).endpoint == WHOLE
    for endpoint in ("https://user:pa55@host:4317", "user:pa55@host:4317"):
        assert wire_settings(endpoint, "grpc").endpoint == "host:4317"


def test_a_receiver_gets_the_login() -> None:
    with answering(200, b"") as asked:
        exporter = exporter_from_config(
            f"http://user:pa55@{asked.place}/v1/traces", None, None, MonotonicClock()
        )
        assert exporter is not None
        exporter.start()
        offer(exporter, 1)
        assert exporter.flush(20)
        stop(exporter)

    assert set(asked.keys) == {"Basic dXNlcjpwYTU1"}


def test_spans_that_do_not_arrive_say_no_login(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the log nor in /debug/tracing and the snapshot, which have this view."""
    endpoint = f"http://user:pa55@127.0.0.1:{free_port()}/v1/traces?token=shown"
    exporter = exporter_from_config(endpoint, None, None, MonotonicClock())
    assert exporter is not None
    exporter.start()
    offer(exporter, 1)
    eventually(lambda: exporter.view().last_error, "a failure")
    stop(exporter)

    view = exporter.view()
    said = f"{caplog.text} {exporter.target} {msgspec.json.encode(view)!r}"
    assert "spans do not reach http://127.0.0.1" in said
    assert "pa55" not in said
    assert "token=" not in said


def test_metrics_that_do_not_arrive_say_no_login(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    port = free_port()
    endpoint = f"http://user:pa55@127.0.0.1:{port}/v1/metrics?token=shown"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)
    config = ServeConfig(
        engine=EngineConfig(model=ModelRef(kind=ModelKind.DUMMY, path="", name="")),
        gateway=GatewayConfig(),
        tracing=TracingConfig(),
    )
    world = MetricsWorld().feed([engine_started()])
    pusher = build_pusher(config, MonotonicClock(), world.metrics)
    assert pusher is not None
    pusher.start()
    eventually(lambda: pusher.stats.failed, "a failure")
    pusher.shutdown()

    said = f"{caplog.text} {pusher.target} {pusher.stats.last_error}"
    assert pusher.target == f"http://127.0.0.1:{port}/v1/metrics"
    assert "metrics do not reach http://127.0.0.1" in said
    assert "pa55" not in said
    assert "token=" not in said


def test_a_header_that_cannot_be_sent_is_not_quoted() -> None:
    """requests would quote its value, which is often a key."""
    answers: list[Answer] = []
    session = AnswerSession(ExportTraceServiceResponse, answers.append, WHOLE)
    with session, pytest.raises(requests.exceptions.InvalidHeader):
        session.post(WHOLE, data=b"x", headers={"authorization": "Bearer pa\n55"})

    assert [answer.error for answer in answers] == [HEADERS_WRONG]


def test_an_error_is_shown_without_what_it_quotes_of_the_url() -> None:
    """Also where a library has written the query in its own way."""
    error = "Max retries exceeded with url: /v1/traces?token=shown%20x (Caused by E('no host'))"
    said = shown_text(f"{error} and {WHOLE}", WHOLE)

    assert said == (
        "Max retries exceeded with url: /v1/traces (Caused by E('no host')) and "
        "https://host:4318/v1/traces"
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_settings_in_force_are_printed_without_the_login(
    form: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor as a line that `--config` would take: it would not work."""
    assert main(["config", "--otlp-endpoint", WHOLE, *form]) == 0

    said = capsys.readouterr().out
    assert "pa55" not in said
    assert "token=" not in said
    if form:
        value = json.loads(said)["settings"]["otlp_endpoint"]["value"]
        assert value == "https://host:4318/v1/traces"
    else:
        assert "# otlp_endpoint is set, less its login: https://host:4318/v1/traces" in said
        assert "\notlp_endpoint" not in said
