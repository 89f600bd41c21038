"""From flags and the standard OTEL_* variables to an exporter.

Flags win. Read are OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER (`none`), OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, and with or without `_TRACES` after OTLP: OTEL_EXPORTER_OTLP_ENDPOINT,
_PROTOCOL, _HEADERS, _TIMEOUT (s), _COMPRESSION, _INSECURE, _CERTIFICATE, _CLIENT_KEY,
_CLIENT_CERTIFICATE.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
from dataclasses import replace
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.util.re import parse_env_headers

from telemetry.clock import Clock
from telemetry.otlp import SpanExporterThread
from telemetry.otlp_delivery import RetryPolicy
from telemetry.otlp_wire import WireSettings, open_sender
from telemetry.sampling import TailSampler
from telemetry.spans import SpanBuilder
from telemetry.stall_spans import Attributes
from telemetry.traceparent import new_span_id


def service_resource(service_name: str | None) -> Resource:
    """Who we are; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES add to it and win."""
    pid = os.getpid()
    host = socket.gethostname()
    defaults: Attributes = {
        "service.name": "phasescope",
        "service.instance.id": f"{host}:{pid}",
        "service.version": _version(),
        "host.name": host,
        "process.pid": pid,
    }
    detected = Resource.create()
    stated: Attributes = dict(detected.attributes)
    if str(stated.get("service.name", "")).startswith("unknown_service"):
        del stated["service.name"]
    attributes: Attributes = {**defaults, **stated}
    if service_name:
        attributes["service.name"] = service_name
    return Resource(attributes)


def exporter_from_config(
    endpoint: str | None,
    protocol: str | None,
    service_name: str | None,
    clock: Clock,
    sampler: TailSampler | None = None,
    server: tuple[str, int] | None = None,
) -> SpanExporterThread | None:
    """The exporter that flags and variables ask for; None when they ask for none.

    `server` is the address and port that requests come to. Raises OSError when a certificate
    cannot be read.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if endpoint is None and os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    target = endpoint or _env("ENDPOINT")
    if target is None:
        return None
    sender = open_sender(wire_settings(endpoint, protocol))
    builder = SpanBuilder(service_resource(service_name), new_span_id, server)
    return SpanExporterThread(
        sender, builder, sampler or TailSampler(), clock, target, retry_policy()
    )


def wire_settings(endpoint: str | None, protocol: str | None) -> WireSettings:
    """Where spans go and how; `endpoint` and `protocol` are the flags."""
    target = endpoint or _env("ENDPOINT")
    assert target is not None
    chosen = protocol or _env("PROTOCOL") or _guess_protocol(target)
    is_http = chosen.startswith("http")
    headers = parse_env_headers(_env("HEADERS") or "", liberal=True)
    return WireSettings(
        endpoint=_http_url(endpoint, target) if is_http else _authority(target),
        is_http=is_http,
        headers=tuple(headers.items()),
        compress=(_env("COMPRESSION") or "none").lower() == "gzip",
        insecure=_is_insecure(endpoint, target),
        certificate=_env("CERTIFICATE"),
        client_key=_env("CLIENT_KEY"),
        client_certificate=_env("CLIENT_CERTIFICATE"),
    )


def retry_policy() -> RetryPolicy:
    """OTEL_EXPORTER_OTLP_TIMEOUT is of one attempt; what is no number is ignored."""
    policy = RetryPolicy()
    try:
        return replace(policy, attempt_s=float(_env("TIMEOUT") or policy.attempt_s))
    except ValueError:
        return policy


def _version() -> str:
    try:
        return importlib.metadata.version("phasescope")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _env(name: str) -> str | None:
    return (
        os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
        or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
        or None
    )


def _guess_protocol(target: str) -> str:
    """4318 is the registered port of OTLP over HTTP; a path means HTTP too."""
    parts = urlsplit(target if "//" in target else f"//{target}")
    return "http/protobuf" if parts.port == 4318 or parts.path.strip("/") else "grpc"


def _http_url(flag: str | None, target: str) -> str:
    """A variable for traces alone names the whole URL, the general one a base; a flag may be
    either."""
    full = target if "//" in target else f"http://{target}"
    is_whole = bool(urlsplit(full).path.strip("/"))
    if flag is None:
        is_whole = bool(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
    return full if is_whole else full.rstrip("/") + "/v1/traces"


def _authority(target: str) -> str:
    """What a gRPC channel is opened to."""
    return urlsplit(target).netloc or target if "//" in target else target


def _is_insecure(flag: str | None, target: str) -> bool:
    """The scheme decides; without one a flag means plain text, as it is typed at a local
    collector, and a variable means TLS unless _INSECURE says otherwise."""
    if "//" in target:
        return urlsplit(target).scheme != "https"
    return flag is not None or (_env("INSECURE") or "").lower() == "true"
