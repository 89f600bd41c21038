"""An OTLP receiver that writes what it gets as the collector's file exporter does: one request of
an exporter a line, as OTLP JSON."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

HOST = "127.0.0.1"
_IDS = ("traceId", "spanId", "parentSpanId")


class SpanFile(trace_service_pb2_grpc.TraceServiceServicer):
    """The gRPC service of `with SpanFile(path) as receiver: receiver.endpoint`."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(2))

    def __enter__(self) -> SpanFile:
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
            self, self._server
        )
        self.endpoint = f"http://{HOST}:{self._server.add_insecure_port(f'{HOST}:0')}"
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop(0)

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        line = json.dumps(as_collector_json(request))
        with self._lock, self._path.open("a") as file:
            file.write(f"{line}\n")
        return trace_service_pb2.ExportTraceServiceResponse()


def as_collector_json(request: Any) -> dict[str, Any]:
    """OTLP JSON: names in camel case, ids in hex, kinds and states as numbers."""
    found: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    for group in found.get("resourceSpans", ()):
        for scope in group.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for name in _IDS:
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
    return found
