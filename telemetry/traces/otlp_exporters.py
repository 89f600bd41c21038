"""An official OTLP exporter, one attempt at a time, and what the receiver answered to it.

It encodes, compresses, encrypts and sends, and reads the OTEL_* variables, but says no more than
whether an export worked. So it has a hook where its library takes one: a `requests.Session` over
HTTP, an interceptor of the channel over gRPC. The hook keeps the answer, and ends an attempt that
failed with an exception that the exporter does not retry after: when to try again is decided by
`telemetry.traces.otlp_delivery`, whose waits can be counted and cut short.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

Signal = Literal["traces", "metrics"]

HEADERS_WRONG = "OTEL_EXPORTER_OTLP_HEADERS has a value (not shown) that cannot be sent"
_MAX_ERROR_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of one attempt, which sent `size_bytes`.

    `error` None: the receiver took the batch but for `rejected` spans or data points; `message` is
    what it said. Otherwise `error` is one line, `retryable` says whether a retry can help, and
    `retry_after_s` is the wait that the receiver asks for, if it does. `sent` False: there was no
    attempt, for instance because the batch cannot be encoded.
    """

    size_bytes: int = 0
    rejected: int = 0
    message: str | None = None
    error: str | None = None
    retryable: bool = False
    retry_after_s: float | None = None
    sent: bool = True


@dataclass(frozen=True, slots=True)
class WireSettings:
    """Where a signal goes: the full URL over HTTP, host:port over gRPC."""

    endpoint: str
    is_http: bool
    signal: Signal = "traces"
    insecure: bool = True
    compress: bool = False


class NotTaken(Exception):
    """Ends an attempt that failed."""


class Exporter:
    """Nothing is connected before the first export. An attempt takes at most `timeout_s`, or what
    OTEL_EXPORTER_OTLP_TIMEOUT says."""

    def __init__(self, settings: WireSettings, timeout_s: float | None = None) -> None:
        if settings.is_http:
            from telemetry.traces.otlp_http import http_exporter as make
        else:
            from telemetry.traces.otlp_grpc import grpc_exporter as make
        # it logs each failed attempt; we log an outage once
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._answer: Answer | None = None
        self._official = make(settings, timeout_s, self._keep)

    def export(self, batch: Any) -> Answer:
        """One attempt to deliver spans (`Sequence[ReadableSpan]`) or metrics (`MetricsData`), as
        the signal is. Never raises. Called by one thread."""
        self._answer = None
        reason = "the exporter did not send it"
        try:
            self._official.export(batch)
        except Exception as error:  # any failure costs this batch and nothing else
            reason = one_line(error)
        return self._answer or Answer(error=reason, sent=False)

    def close(self) -> None:
        """No more exports. May be called from another thread: over gRPC it ends an attempt in
        flight, over HTTP that one runs into its time limit."""
        self._official.shutdown()

    def _keep(self, answer: Answer) -> None:
        self._answer = answer
        if answer.error is not None:
            raise NotTaken(answer.error)


def taken(response: Any, size_bytes: int) -> Answer:
    """The receiver took a batch, perhaps not all of it."""
    partial = response.partial_success
    rejected = getattr(partial, "rejected_spans", 0) or getattr(partial, "rejected_data_points", 0)
    message = partial.error_message or None
    return Answer(size_bytes=size_bytes, rejected=max(0, rejected), message=message)


def one_line(error: object) -> str:
    """An exception, or the text of an error."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
    return text.partition("\n")[0][:_MAX_ERROR_CHARACTERS]
