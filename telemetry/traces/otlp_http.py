"""The official exporters over HTTP, with a session that passes on each answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from urllib3.util import Retry

from telemetry.facts.credentials import shown_text
from telemetry.traces.otlp_exporters import HEADERS_WRONG, Answer, WireSettings, one_line, taken

_RETRYABLE_STATUS = frozenset({429, 502, 503, 504})
_KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "traces": (OTLPSpanExporter, ExportTraceServiceResponse),
    "metrics": (OTLPMetricExporter, ExportMetricsServiceResponse),
}


def http_exporter(
    settings: WireSettings, timeout_s: float | None, keep: Callable[[Answer], None]
) -> Any:
    exporter, response = _KINDS[settings.signal]
    session = AnswerSession(response, keep, settings.endpoint)
    return exporter(settings.endpoint, timeout=timeout_s, session=session)


class AnswerSession(requests.Session):
    """Passes each answer to `keep`, which raises unless the receiver took the batch."""

    def __init__(self, response: type[Any], keep: Callable[[Answer], None], url: str) -> None:
        super().__init__()
        self._response, self._keep, self._url = response, keep, url

    def request(self, *args: Any, **arguments: Any) -> requests.Response:
        """One attempt."""
        size_bytes = len(arguments["data"])
        try:
            answer = super().request(*args, **arguments)
        except Exception as error:
            again = isinstance(error, requests.ConnectionError | requests.Timeout)
            self._keep(Answer(size_bytes=size_bytes, error=self._said(error), retryable=again))
            raise
        if 200 <= answer.status_code < 300:
            self._keep(taken(self._read(answer), size_bytes))
        else:
            status, after = answer.status_code, answer.headers.get("retry-after")
            self._keep(
                Answer(
                    size_bytes=size_bytes,
                    error=f"the receiver answered {status} {answer.reason}",
                    retryable=status in _RETRYABLE_STATUS,
                    retry_after_s=None if after is None else _seconds(after),
                )
            )
        return answer

    def _said(self, error: Exception) -> str:
        """One line without what the URL or a header has of a login."""
        if isinstance(error, requests.exceptions.InvalidHeader):
            return HEADERS_WRONG
        return one_line(shown_text(f"{type(error).__name__}: {error}", self._url))

    def _read(self, answer: requests.Response) -> Any:
        """Its message; an empty one if it cannot be read, because the status says: taken."""
        if "protobuf" in answer.headers.get("content-type", ""):
            with contextlib.suppress(Exception):
                return self._response.FromString(answer.content)
        return self._response()


def _seconds(retry_after: str) -> float | None:
    """From seconds or a date; None when it is neither."""
    try:
        return Retry().parse_retry_after(retry_after)
    except Exception:
        return None
