"""One attempt to send an encoded OTLP request to a receiver, over gRPC or HTTP.

The official exporters are not used for this. They do not read the response, so spans that the
receiver rejects look delivered. Their retries cannot be observed or cut short. Over gRPC they do
not find RetryInfo where collectors put it. The encoder, the messages and the OTEL_* variables
(`telemetry.traces.otlp_config`) are the official ones.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from telemetry.facts.clock import unix_seconds

if TYPE_CHECKING:
    import grpc
    import requests

_RETRYABLE_STATUS = frozenset({429, 502, 503, 504})
_SERVICES = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_RECONNECT_MS = (("initial", 500), ("max", 5000))  # gRPC's own default goes to two minutes
_MAX_ERROR_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one attempt.

    `error` None: the receiver took the request and `body` is its encoded response. Otherwise it is
    one line, `retryable` says whether a retry can help, and `retry_after_s` is the wait that the
    receiver asks for, if it does.
    """

    body: bytes = b""
    error: str | None = None
    retryable: bool = False
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """Where and how to send. `endpoint` is the full URL for HTTP and host:port for gRPC; the last
    three are paths of PEM files."""

    endpoint: str
    is_http: bool
    signal: str = "traces"
    headers: tuple[tuple[str, str], ...] = ()
    compress: bool = False
    insecure: bool = True
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None


class Sender(Protocol):
    """Sends encoded requests, one at a time."""

    def send(self, request: bytes, timeout_s: float) -> Answer:
        """Never raises; returns in about `timeout_s` at the latest."""
        ...

    def close(self) -> None:
        """No more requests. May be called from another thread: over gRPC it ends a request in
        flight, over HTTP that one runs into its timeout."""
        ...


def open_sender(settings: WireSettings) -> Sender:
    """Nothing is connected before the first request."""
    return HttpSender(settings) if settings.is_http else GrpcSender(settings)


class HttpSender:
    """OTLP over HTTP with protobuf bodies, on one kept-alive connection."""

    def __init__(self, settings: WireSettings) -> None:
        import requests

        self._url = settings.endpoint
        self._compress = settings.compress
        self._session = requests.Session()
        self._session.headers.update({"content-type": "application/x-protobuf"})
        if settings.compress:
            self._session.headers["content-encoding"] = "gzip"
        self._session.headers.update(dict(settings.headers))
        self._session.verify = settings.certificate or True
        if settings.client_certificate is not None:
            certificate, key = settings.client_certificate, settings.client_key
            self._session.cert = (certificate, key) if key else certificate

    def send(self, request: bytes, timeout_s: float) -> Answer:
        body = gzip.compress(request, 1) if self._compress else request
        try:
            response = self._session.post(
                self._url, data=body, timeout=timeout_s, allow_redirects=False
            )
        except Exception as error:  # any failure costs these spans and nothing else
            return Answer(error=_one_line(error), retryable=_is_transient(error))
        if 200 <= response.status_code < 300:
            is_protobuf = "protobuf" in response.headers.get("content-type", "")
            return Answer(body=response.content if is_protobuf else b"")
        return Answer(
            error=f"the receiver answered {response.status_code} {response.reason}",
            retryable=response.status_code in _RETRYABLE_STATUS,
            retry_after_s=_retry_after_s(response),
        )

    def close(self) -> None:
        self._session.close()


def _is_transient(error: Exception) -> bool:
    """A connection that failed or broke, or an answer that did not come."""
    import requests

    return isinstance(error, requests.ConnectionError | requests.Timeout)


def _retry_after_s(response: requests.Response) -> float | None:
    """Seconds or a date; None when it is absent or neither."""
    value = response.headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - unix_seconds())
    except ValueError:
        return None


class GrpcSender:
    """OTLP over gRPC on one channel, which connects again by itself."""

    def __init__(self, settings: WireSettings) -> None:
        import grpc

        options = [(f"grpc.{name}_reconnect_backoff_ms", ms) for name, ms in _RECONNECT_MS]
        compression = grpc.Compression.Gzip if settings.compress else None
        if settings.insecure:
            self._channel = grpc.insecure_channel(settings.endpoint, options, compression)
        else:
            self._channel = grpc.secure_channel(
                settings.endpoint, _credentials(settings), options, compression
            )
        # bytes go in and come out: what is sent is encoded once, however often it is tried
        self._export = self._channel.unary_unary(_SERVICES[settings.signal], None, None)
        self._metadata = settings.headers

    def send(self, request: bytes, timeout_s: float) -> Answer:
        import grpc

        try:
            body = self._export(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            return _rpc_failure(error)
        except Exception as error:  # the channel is closed
            return Answer(error=_one_line(error))
        return Answer(body=body)

    def close(self) -> None:
        self._channel.close()


def _credentials(settings: WireSettings) -> grpc.ChannelCredentials:
    """Raises OSError for a file that cannot be read."""
    import grpc

    def read(path: str | None) -> bytes | None:
        return None if path is None else Path(path).read_bytes()

    return grpc.ssl_channel_credentials(
        root_certificates=read(settings.certificate),
        private_key=read(settings.client_key),
        certificate_chain=read(settings.client_certificate),
    )


def _rpc_failure(error: grpc.RpcError) -> Answer:
    """A failure as an answer. OTLP defines which codes may be retried; RESOURCE_EXHAUSTED only if
    the receiver gives a delay."""
    import grpc

    code = error.code()
    retry_after_s = _retry_info_s(error)
    retryable = code in {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        retryable = retry_after_s is not None
    text = f"{code.name}: {error.details() or 'no details'}"
    return Answer(
        error=text[:_MAX_ERROR_CHARACTERS], retryable=retryable, retry_after_s=retry_after_s
    )


def _retry_info_s(error: grpc.RpcError) -> float | None:
    """RetryInfo among the details of the status, which is where gRPC puts it."""
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    for item in error.trailing_metadata() or ():
        if item.key != "grpc-status-details-bin":
            continue
        try:
            details = Status.FromString(item.value).details
        except Exception:  # not a Status
            return None
        for detail in details:
            info = RetryInfo()
            if detail.Unpack(info):
                return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return None


def _one_line(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return text[:_MAX_ERROR_CHARACTERS]
