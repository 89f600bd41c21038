"""Which key opens what: reading the internals, changing the server, using the model."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from service.cli.source import add_debug_key
from service.config.settings import GatewayConfig
from service.gateway.errors import ApiError
from service.gateway.http.security import refusal

CHANGES = (
    ("PUT", "/debug/limits"),
    ("PUT", "/debug/tracing"),
    ("PUT", "/debug/telemetry"),
    ("POST", "/debug/profile"),
    ("POST", "/debug/dump"),
    ("POST", "/debug/cache/flush"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
)
READS = (("GET", "/debug/limits"), ("HEAD", "/debug/snapshot"), ("GET", "/metrics"))
API, DEBUG, TENANT = "key-of-all", "key-of-operators", "key-of-one"
TENANTS = {TENANT: "tenant"}


def refused(config: GatewayConfig, method: str, path: str, key: str = "") -> ApiError | None:
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": headers}
    return refusal(config, scope)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_without_a_debug_key_a_change_needs_the_api_key_and_no_tenants(
    method: str, path: str
) -> None:
    config = GatewayConfig(api_key=API, tenant_keys=TENANTS)

    for key in ("", "wrong", TENANT):
        error = refused(config, method, path, key)
        assert error is not None
        assert (error.status, error.code) == (401, "invalid_api_key")
        assert "--api-key" in error.message
    assert refused(config, method, path, API) is None
    assert refused(GatewayConfig(tenant_keys=TENANTS), method, path, TENANT) is not None


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_with_a_debug_key_a_change_needs_that_key(method: str, path: str) -> None:
    config = GatewayConfig(api_key=API, debug_key=DEBUG, tenant_keys=TENANTS)

    for key in ("", API, TENANT):
        error = refused(config, method, path, key)
        assert error is not None
        assert "--debug-key" in error.message
    assert refused(config, method, path, DEBUG) is None


@pytest.mark.parametrize(("method", "path"), READS)
def test_the_debug_key_alone_closes_what_only_shows(method: str, path: str) -> None:
    assert refused(GatewayConfig(api_key=API, tenant_keys=TENANTS), method, path) is None
    error = refused(GatewayConfig(api_key=API, debug_key=DEBUG), method, path, API)
    assert error is not None
    assert "--debug-key" in error.message


@pytest.mark.parametrize(("method", "path"), [*CHANGES, *READS, ("POST", "/v1/completions")])
def test_without_keys_all_is_open(method: str, path: str) -> None:
    assert refused(GatewayConfig(), method, path) is None


def test_the_model_is_for_the_api_key_and_for_tenants() -> None:
    config = GatewayConfig(api_key=API, debug_key=DEBUG, tenant_keys=TENANTS)

    for path in ("/v1/completions", "/tokenize"):
        assert refused(config, "POST", path, API) is None
        assert refused(config, "POST", path, TENANT) is None
        error = refused(config, "POST", path, DEBUG)
        assert error is not None
        assert "an API key" in error.message


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"PHASESCOPE_API_KEY": API}, API),
        ({"PHASESCOPE_API_KEY": API, "PHASESCOPE_DEBUG_KEY": DEBUG}, DEBUG),
        ({}, None),
    ],
)
def test_commands_send_the_key_that_the_server_was_started_with(
    variables: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PHASESCOPE_API_KEY", "PHASESCOPE_DEBUG_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    add_debug_key(parser)

    assert parser.parse_args([]).debug_key == found
