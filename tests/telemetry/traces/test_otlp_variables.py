"""The standard variables, through the official exporters to a real receiver."""

from __future__ import annotations

import pytest

from service.composition.metrics_wiring import build_pusher
from service.composition.tracing_wiring import build_exporter
from service.config.settings import (
    ConfigError,
    EngineConfig,
    GatewayConfig,
    ModelKind,
    ModelRef,
    ServeConfig,
    TracingConfig,
)
from telemetry.facts.clock import MonotonicClock
from telemetry.requests.slo_policy import policy_of
from tests.support.servers.otlp_receiver import Fault, OtlpReceiver
from tests.support.servers.otlp_thread import TREE, WIRES, both, dropped, exporting, offer
from tests.support.worlds.metrics_world import MetricsWorld

WRONG = r"^(the OTLP|an OTEL_EXPORTER_OTLP)"


def config_of(tracing: TracingConfig) -> ServeConfig:
    model = ModelRef(kind=ModelKind.DUMMY, path="", name="")
    return ServeConfig(engine=EngineConfig(model=model), gateway=GatewayConfig(), tracing=tracing)


@both
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_compressed_spans_arrive(
    protocol: str, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP the bytes are counted as sent; over gRPC the library compresses after that."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        offer(thread, 4)
        assert thread.flush(20)
        view = thread.view()

    assert view.spans_exported == receiver.spans_taken == 4 * TREE
    per_span = view.bytes_sent / view.spans_exported
    is_small = per_span < 100
    assert is_small is (protocol == "http" and compression == "gzip")


@both
def test_the_time_limit_of_an_attempt_is_the_variables(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of ours."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        receiver.fault = Fault.BLACK_HOLE
        offer(thread, 1)
        assert receiver.hanging.wait(20)
        receiver.wait_for(lambda _: thread.view().attempts_failed, "an attempt that timed out")
        receiver.fault = None
        assert thread.flush(20)

    assert dropped(thread.view()) == {}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/nowhere/key.pem"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
    ],
)
def test_a_variable_that_cannot_work_stops_the_start(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporters would log it and go on without a certificate."""
    monkeypatch.setenv(variable, value)
    config = config_of(TracingConfig(endpoint="https://localhost:4317", protocol=WIRES["grpc"]))

    with pytest.raises(ConfigError, match=WRONG):
        build_exporter(
            config, MonotonicClock(), 0, policy_of(None), lambda _: False, lambda a, b: ()
        )


@both
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CERTIFICATE", "/nowhere/ca.pem"),
        ("CLIENT_CERTIFICATE", "/nowhere/cert.pem"),
        ("TIMEOUT", "10s"),
    ],
)
def test_a_variable_of_metrics_that_cannot_work_stops_the_start_too(
    variable: str, value: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over either protocol, and in one line."""
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_METRICS_{variable}", value)
    wire = WIRES[protocol]
    config = config_of(TracingConfig(endpoint="https://localhost:4317", protocol=wire))

    with pytest.raises(ConfigError, match=WRONG):
        build_pusher(config, MonotonicClock(), MetricsWorld().metrics)


@pytest.mark.parametrize("endpoint", ["http://user:never/shown@host:4318", "https://[never"])
def test_an_endpoint_of_metrics_that_is_no_url_stops_the_start(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not quoted: it may have a login."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)

    with pytest.raises(ConfigError, match=WRONG) as caught:
        build_pusher(config_of(TracingConfig()), MonotonicClock(), MetricsWorld().metrics)
    assert "never" not in str(caught.value)
