"""The standard variables, through the official exporters to a real receiver."""

from __future__ import annotations

import pytest

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
    model = ModelRef(kind=ModelKind.DUMMY, path="", name="")
    config = ServeConfig(
        engine=EngineConfig(model=model),
        gateway=GatewayConfig(),
        tracing=TracingConfig(endpoint="https://localhost:4317", protocol=WIRES["grpc"]),
    )

    with pytest.raises(ConfigError, match=r"^(the OTLP|an OTEL_EXPORTER_OTLP)"):
        build_exporter(
            config, MonotonicClock(), 0, policy_of(None), lambda _: False, lambda a, b: ()
        )
