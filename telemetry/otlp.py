"""Exports spans over OTLP from a thread that can neither block nor hang the service.

Timelines wait in a bounded queue; when it is full the newest is dropped and counted. The
official exporters send small chunks, because encoding a large one holds the interpreter
lock for milliseconds. A collector that is gone, hangs or is slow costs spans, not latency.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from telemetry.clock import Clock, read_wall_anchor
from telemetry.phases import RequestTimeline
from telemetry.spans import Attributes, SpanBuilder
from telemetry.traceparent import new_span_id

log = logging.getLogger("phasescope.otlp")

_QUEUE_TIMELINES = 8192
_CHUNK_SPANS = 32
_EXPORT_TIMEOUT_S = 5.0
_ANCHOR_EVERY_NS = 10_000_000_000
_FLUSH_S = 2.0
_JOIN_S = 0.5


@dataclass(slots=True)
class ExportStats:
    """Counters since the start; `last_error` is one line."""

    spans_exported: int = 0
    spans_dropped: int = 0
    timelines_unsampled: int = 0
    exports_failed: int = 0
    busy_ns: int = 0
    last_error: str | None = None


class SpanExporterThread:
    """A listener of the phase fold that exports each timeline's tree.

    A request whose caller decided not to sample (flag 0 in `traceparent`) is not exported.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        builder: SpanBuilder,
        clock: Clock,
        target: str,
        capacity: int = _QUEUE_TIMELINES,
    ) -> None:
        self.stats = ExportStats()
        self.target = target
        self._exporter = exporter
        self._builder = builder
        self._clock = clock
        self._capacity = capacity
        self._queue: deque[RequestTimeline] = deque()
        self._wake = threading.Event()
        self._drained = threading.Event()
        self._stop = threading.Event()
        self._anchor = read_wall_anchor()
        self._reachable = True
        self._thread = threading.Thread(target=self._run, name="phasescope-otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def on_timeline(self, timeline: RequestTimeline) -> None:
        """Queue a tree for export; never waits."""
        if timeline.accepted.trace_sampled is False:
            self.stats.timelines_unsampled += 1
            return
        if len(self._queue) >= self._capacity:
            self.stats.spans_dropped += _span_count(timeline)
            return
        self._queue.append(timeline)
        self._drained.clear()
        self._wake.set()

    def shutdown(self) -> None:
        """Try to send what is queued for a bounded time, then give it up and count it."""
        self._wake.set()
        if self._thread.is_alive() and not self._drained.wait(_FLUSH_S):
            log.warning("%d traces were not exported before shutdown", len(self._queue))
        self._stop.set()
        self._wake.set()
        closer = threading.Thread(target=self._exporter.shutdown, daemon=True)
        closer.start()  # breaks the exporter's back-off; may itself wait on a lock
        closer.join(_JOIN_S)
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        while self._queue:
            self.stats.spans_dropped += _span_count(self._queue.popleft())

    def _run(self) -> None:
        self._drained.set()
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            self._drained.clear()
            while self._queue and not self._stop.is_set():
                self._export_some()
            if not self._queue:
                self._drained.set()

    def _export_some(self) -> None:
        """Build and send trees until a chunk is full; a chunk never splits the queue's order."""
        begin_ns = self._clock.now_ns()
        if begin_ns - self._anchor.monotonic_ns > _ANCHOR_EVERY_NS:
            self._anchor = read_wall_anchor()
        spans: list[ReadableSpan] = []
        while self._queue and len(spans) < _CHUNK_SPANS:
            try:
                spans += self._builder.build(self._queue.popleft(), self._anchor)
            except Exception as error:
                self.stats.last_error = f"building spans: {type(error).__name__}: {error}"
                log.exception("a trace could not be built")
        for start in range(0, len(spans), _CHUNK_SPANS):
            self._send(spans[start : start + _CHUNK_SPANS])
        self.stats.busy_ns += self._clock.now_ns() - begin_ns

    def _send(self, spans: list[ReadableSpan]) -> None:
        try:
            sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
            error = "the receiver did not take the spans"
        except Exception as raised:
            sent, error = False, f"{type(raised).__name__}: {raised}"
        if sent:
            self.stats.spans_exported += len(spans)
            if not self._reachable:
                log.warning("spans reach %s again", self.target)
        else:
            self.stats.spans_dropped += len(spans)
            self.stats.exports_failed += 1
            self.stats.last_error = error
            if self._reachable:
                log.warning("spans do not reach %s (%s); serving goes on", self.target, error)
        self._reachable = sent


def _span_count(timeline: RequestTimeline) -> int:
    """Spans that a tree has, without building it."""
    inner = sum(len(s.chunks) + len(s.preempted) for s in timeline.sequences)
    stalls = len(timeline.account.stalls) if timeline.account else 0
    return 1 + len(timeline.phases) + inner + stalls


def service_resource(service_name: str | None) -> Resource:
    """Who we are; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES add to it and win."""
    pid = os.getpid()
    host = socket.gethostname()
    defaults: Attributes = {
        "service.name": "phasescope",
        "service.instance.id": f"{host}:{pid}",
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
    endpoint: str | None, protocol: str | None, service_name: str | None, clock: Clock
) -> SpanExporterThread | None:
    """The exporter that flags and OTEL_* variables ask for; None when they ask for none."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    target = endpoint or _env("ENDPOINT")
    if endpoint is None and (os.environ.get("OTEL_TRACES_EXPORTER") == "none" or not target):
        return None
    assert target is not None
    quiet_sdk_logs()
    wire = protocol or _env("PROTOCOL") or _guess_protocol(target)
    exporter = _http(endpoint) if wire.startswith("http") else _grpc(endpoint)
    builder = SpanBuilder(service_resource(service_name), new_span_id)
    return SpanExporterThread(exporter, builder, clock, target)


def quiet_sdk_logs() -> None:
    """The SDK logs every failed export; we say it once, when the receiver goes or returns."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


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


def _grpc(endpoint: str | None) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    if endpoint is None:
        return OTLPSpanExporter()
    full = endpoint if "//" in endpoint else f"http://{endpoint}"
    insecure = full.startswith("http://")
    return OTLPSpanExporter(endpoint=full, insecure=insecure, timeout=_EXPORT_TIMEOUT_S)


def _http(endpoint: str | None) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    if endpoint is None:
        return OTLPSpanExporter()
    full = endpoint if "//" in endpoint else f"http://{endpoint}"
    if not urlsplit(full).path.strip("/"):
        full = full.rstrip("/") + "/v1/traces"
    return OTLPSpanExporter(endpoint=full, timeout=_EXPORT_TIMEOUT_S)
