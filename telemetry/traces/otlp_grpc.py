"""The official exporters over gRPC, with an interceptor that passes on each answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from telemetry.traces.otlp_exporters import Answer, WireSettings, one_line, taken

_RETRYABLE = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE"}
_RETRYABLE |= {"DATA_LOSS"}
# gRPC's own default goes to two minutes
_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 500), ("grpc.max_reconnect_backoff_ms", 5000))
_KINDS: dict[str, type[Any]] = {"traces": OTLPSpanExporter, "metrics": OTLPMetricExporter}


def grpc_exporter(
    settings: WireSettings, timeout_s: float | None, keep: Callable[[Answer], None]
) -> Any:
    compression = grpc.Compression.Gzip if settings.compress else grpc.Compression.NoCompression
    exporter = _KINDS[settings.signal](
        settings.endpoint,
        insecure=settings.insecure,
        timeout=timeout_s,
        compression=compression,  # it would not read the word none
        channel_options=_OPTIONS,
    )
    # it has no argument for an interceptor
    exporter._client = exporter._stub(
        grpc.intercept_channel(exporter._channel, AnswerInterceptor(keep))
    )
    return exporter


class AnswerInterceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Passes each answer to `keep`, which raises unless the receiver took the batch."""

    def __init__(self, keep: Callable[[Answer], None]) -> None:
        self._keep = keep

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        """One attempt."""
        call, size_bytes = continuation(client_call_details, request), request.ByteSize()
        if call.code() is grpc.StatusCode.OK:
            self._keep(taken(call.result(), size_bytes))
        else:
            self._keep(_failure(call, size_bytes))
        return call


def _failure(call: Any, size_bytes: int) -> Answer:
    """OTLP defines which codes may be retried; RESOURCE_EXHAUSTED only if the receiver gives a
    delay."""
    name, retry_after_s = call.code().name, _retry_info_s(call)
    exhausted = name == "RESOURCE_EXHAUSTED" and retry_after_s is not None
    return Answer(
        size_bytes=size_bytes,
        error=one_line(f"{name}: {call.details() or 'no details'}"),
        retryable=name in _RETRYABLE or exhausted,
        retry_after_s=retry_after_s,
    )


def _retry_info_s(call: Any) -> float | None:
    """RetryInfo among the details of the status, where collectors put it; the exporters look for a
    header of its own."""
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            info = RetryInfo()
            for detail in Status.FromString(value).details:
                if detail.Unpack(info):
                    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return None
