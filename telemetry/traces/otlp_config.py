"""Whether, where and by which protocol spans and metrics are exported: flags and OTEL_* variables.

Flags win. The variables are OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER
(`none`), OTEL_METRIC_EXPORT_INTERVAL (ms), OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, and with or
without `_TRACES` or `_METRICS` after OTLP: OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL, _INSECURE, and,
read by the official exporters, _HEADERS, _TIMEOUT (s), _COMPRESSION, _CERTIFICATE, _CLIENT_KEY,
_CLIENT_CERTIFICATE.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from opentelemetry.sdk.resources import Resource

from telemetry.facts.base import SpanEvents
from telemetry.facts.clock import Clock
from telemetry.facts.credentials import shown_url, without_login
from telemetry.facts.traceparent import new_span_id
from telemetry.traces.otlp import SpanExporterThread
from telemetry.traces.otlp_delivery import RetryPolicy
from telemetry.traces.otlp_exporters import Exporter, Signal, WireSettings
from telemetry.traces.sampling import TailSampler
from telemetry.traces.spans import SpanBuilder
from telemetry.traces.stall_spans import Attributes

_FILES = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
_METRIC_INTERVAL_S = 10.0


def service_resource(service_name: str | None) -> Resource:
    """The resource of all spans and metrics; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES add to
    it and win."""
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
    server: tuple[str, int | None] | None = None,
    span_events: SpanEvents = lambda begin_ns, end_ns: (),
) -> SpanExporterThread | None:
    """The exporter that flags and variables configure; None when they configure none.

    `server` is the address and port that requests come to; a unix socket has no port. Raises
    OSError when a certificate cannot be read, and ValueError for a variable that cannot be.
    """
    target = asked_target(endpoint)
    if target is None:
        return None
    retry = RetryPolicy()
    return SpanExporterThread(
        Exporter(wire_settings(endpoint, protocol), retry.attempt_s),
        SpanBuilder(service_resource(service_name), new_span_id, server),
        sampler or TailSampler(),
        clock,
        shown_url(target),
        retry,
        span_events=span_events,
    )


def asked_target(endpoint: str | None, signal: Signal = "traces") -> str | None:
    """The receiver of a signal, as the flag or a variable states it; None when there is none."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if endpoint is None and os.environ.get(f"OTEL_{signal.upper()}_EXPORTER") == "none":
        return None
    return endpoint or _env("ENDPOINT", signal)


def wire_settings(
    endpoint: str | None, protocol: str | None, signal: Signal = "traces"
) -> WireSettings:
    """Where and how a signal is sent; `endpoint` and `protocol` are the flags. Raises OSError for a
    certificate that cannot be read, and ValueError for a time limit that is no number: an exporter
    would go on without it."""
    target = endpoint or _env("ENDPOINT", signal)
    assert target is not None
    float(_env("TIMEOUT", signal) or 0)
    insecure = _is_insecure(endpoint, target, signal)
    for path in () if insecure else filter(None, (_env(name, signal) for name in _FILES)):
        Path(path).read_bytes()
    asked = protocol or _env("PROTOCOL", signal) or _guess_protocol(target)
    is_http = asked.startswith("http")
    address = _http_url(endpoint, target, signal) if is_http else _authority(target)
    compress = (_env("COMPRESSION", signal) or "none").lower() == "gzip"
    return WireSettings(address, is_http, signal, insecure, compress)


def metric_interval_s() -> float:
    """OTEL_METRIC_EXPORT_INTERVAL; ten seconds without it."""
    try:
        stated_ms = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""))
    except ValueError:
        return _METRIC_INTERVAL_S
    return stated_ms / 1000 if stated_ms > 0 else _METRIC_INTERVAL_S


def _version() -> str:
    try:
        return importlib.metadata.version("phasescope")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _env(name: str, signal: Signal) -> str | None:
    return (
        os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}")
        or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
        or None
    )


def _guess_protocol(target: str) -> str:
    """4318 is the registered port of OTLP over HTTP; a path means HTTP too."""
    parts = _split(target if "//" in target else f"//{target}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port of the endpoint is no number") from None
    return "http/protobuf" if port == 4318 or parts.path.strip("/") else "grpc"


def _split(target: str) -> SplitResult:
    """Raises ValueError, which does not quote the endpoint: it may have a login."""
    try:
        return urlsplit(target)
    except ValueError:
        raise ValueError("the endpoint is no URL") from None


def _http_url(flag: str | None, target: str, signal: Signal) -> str:
    """A variable for one signal alone names the whole URL, the general one a base. A flag may be
    either, and if it is a whole one, it is that of traces."""
    full = (target if "//" in target else f"http://{target}").rstrip("/")
    path = f"/v1/{signal}"
    if flag is None:
        if os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"):
            return full
    elif signal == "traces" and _split(full).path:
        return full
    else:
        full = full.removesuffix("/v1/traces")
    return full if full.endswith(path) else full + path


def _authority(target: str) -> str:
    """The host:port of a gRPC channel, which has no place for a login."""
    return without_login(_split(target).netloc or target if "//" in target else target)


def _is_insecure(flag: str | None, target: str, signal: Signal) -> bool:
    """The scheme decides; without one a flag means plain text, as it is typed at a local
    collector, and a variable means TLS unless _INSECURE says otherwise."""
    if "//" in target:
        return _split(target).scheme != "https"
    return flag is not None or (_env("INSECURE", signal) or "").lower() == "true"
