"""Sends metrics over OTLP every few seconds, from a thread that holds nobody up.

Counters and histograms are cumulative: an export that fails loses nothing, the next one
says it all, so nothing is retried and nothing is queued.
"""

from __future__ import annotations

import logging
import os
import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from telemetry.clock import Clock, read_wall_anchor
from telemetry.families import Family, Labels, one_by_one
from telemetry.otlp_metrics import Interval, export_request

log = logging.getLogger("phasescope.otlp")

_INTERVAL_S = 10.0
_TIMEOUT_S = 5.0
_LAST_TIMEOUT_S = 1.0
_JOIN_S = 1.5
_PATH = "/v1/metrics"


class Transport(Protocol):
    """One way to a receiver. `send` raises whatever goes wrong."""

    def send(
        self, request: ExportMetricsServiceRequest, timeout_s: float
    ) -> ExportMetricsServiceResponse: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class PushStats:
    """Counters since the start; `last_error` is one line."""

    exported: int = 0
    failed: int = 0
    points_rejected: int = 0
    busy_ns: int = 0
    last_error: str | None = None


class MetricPusher:
    """Asks `collect` for everything, and sends it, every `interval_s` and once at the end."""

    def __init__(
        self,
        collect: Callable[[], Sequence[Family]],
        transport: Transport,
        clock: Clock,
        resource: Labels,
        target: str,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self.stats = PushStats()
        self.target = target
        self._collect = collect
        self._transport = transport
        self._clock = clock
        self._resource = resource
        self._interval_s = interval_s
        self._started_ns = clock.now_ns()
        self._anchor = read_wall_anchor()
        self._reachable = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phasescope-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shutdown(self) -> None:
        """One last export, for a bounded time; call it when all facts have been folded."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            log.warning("the last metrics were not exported: %s does not answer", self.target)
        closer = threading.Thread(target=self._transport.close, daemon=True)
        closer.start()  # may wait for the export that hangs
        closer.join(_JOIN_S / 3)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._export(_TIMEOUT_S)
        self._export(_LAST_TIMEOUT_S)

    def _export(self, timeout_s: float) -> None:
        begin_ns = self._clock.now_ns()
        try:
            interval = Interval(
                self._anchor.to_unix_ns(self._started_ns), read_wall_anchor().unix_ns
            )
            families = one_by_one(self._collect())
            request = export_request(families, self._resource, interval)
            answer = self._transport.send(request, timeout_s)
        except Exception as error:
            self._note_failure(f"{type(error).__name__}: {error}".partition("\n")[0])
        else:
            self.stats.exported += 1
            self.stats.points_rejected += answer.partial_success.rejected_data_points
            if answer.partial_success.error_message:
                self.stats.last_error = answer.partial_success.error_message
            if not self._reachable:
                log.warning("metrics reach %s again", self.target)
            self._reachable = True
        self.stats.busy_ns += self._clock.now_ns() - begin_ns

    def _note_failure(self, error: str) -> None:
        self.stats.failed += 1
        self.stats.last_error = error
        if self._reachable:
            log.warning("metrics do not reach %s (%s); serving goes on", self.target, error)
        self._reachable = False


class HttpTransport:
    """Protobuf in a POST."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = {**headers, "content-type": "application/x-protobuf"}

    def send(
        self, request: ExportMetricsServiceRequest, timeout_s: float
    ) -> ExportMetricsServiceResponse:
        body = request.SerializeToString()
        post = urllib.request.Request(self._url, body, self._headers, method="POST")
        with urllib.request.urlopen(post, timeout=timeout_s) as answer:
            return ExportMetricsServiceResponse.FromString(answer.read())

    def close(self) -> None:
        """Each POST has a connection of its own."""


class GrpcTransport:
    """A unary call on one channel."""

    def __init__(self, endpoint: str, headers: dict[str, str]) -> None:
        import grpc
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
            MetricsServiceStub,
        )

        address = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
        if address.scheme == "https":
            self._channel = grpc.secure_channel(address.netloc, grpc.ssl_channel_credentials())
        else:
            self._channel = grpc.insecure_channel(address.netloc)
        self._stub = MetricsServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = tuple(headers.items())

    def send(
        self, request: ExportMetricsServiceRequest, timeout_s: float
    ) -> ExportMetricsServiceResponse:
        answer: ExportMetricsServiceResponse = self._stub.Export(
            request, timeout=timeout_s, metadata=self._metadata
        )
        return answer

    def close(self) -> None:
        self._channel.close()


def transport_from_config(
    endpoint: str | None, protocol: str | None
) -> tuple[Transport, str] | None:
    """Where metrics go and how; None when neither flag nor OTEL_* variables ask for it."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    stated = endpoint or _env("ENDPOINT")
    if not stated or (endpoint is None and os.environ.get("OTEL_METRICS_EXPORTER") == "none"):
        return None
    wire = protocol or _env("PROTOCOL") or _guess_protocol(stated)
    if not wire.startswith("http"):
        return GrpcTransport(stated, _headers()), stated
    is_whole = endpoint is None and os.environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    full = stated if "//" in stated else f"http://{stated}"
    path = urlsplit(full).path.rstrip("/")
    if not is_whole and not path.endswith(_PATH):
        full = full.rstrip("/").removesuffix("/v1/traces") + _PATH
    return HttpTransport(full, _headers()), full


def interval_s() -> float:
    """OTEL_METRIC_EXPORT_INTERVAL, in ms; ten seconds without it."""
    try:
        stated_ms = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""))
    except ValueError:
        return _INTERVAL_S
    return stated_ms / 1000 if stated_ms > 0 else _INTERVAL_S


def _env(name: str) -> str | None:
    return (
        os.environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}")
        or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
        or None
    )


def _headers() -> dict[str, str]:
    """`key=value,...`, percent-encoded; names in lower case, as gRPC wants them."""
    found: dict[str, str] = {}
    for pair in (_env("HEADERS") or "").split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            found[unquote(name.strip()).lower()] = unquote(value.strip())
    return found


def _guess_protocol(target: str) -> str:
    """4318 is the registered port of OTLP over HTTP; a path means HTTP too."""
    parts = urlsplit(target if "//" in target else f"//{target}")
    return "http/protobuf" if parts.port == 4318 or parts.path.strip("/") else "grpc"
