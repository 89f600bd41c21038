"""A receiver of spans (OTLP over HTTP) that keeps them, as plain dictionaries."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """`with Receiver() as receiver:` ... `receiver.spans`."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    receiver.take(body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        """A tree comes whole; its root names the request."""
        sent = ExportTraceServiceRequest.FromString(body)
        scopes = [scope for resource in sent.resource_spans for scope in resource.scope_spans]
        found = [_plain(span) for scope in scopes for span in scope.spans]
        roots = {s["trace_id"]: s["attributes"].get("gen_ai.request.id") for s in found}
        for span in found:
            name = span["attributes"].get("gen_ai.request.id")
            if name is not None:
                roots[span["trace_id"]] = name
        for span in found:
            span["request_id"] = roots[span["trace_id"]]
        self.spans += found


def _plain(span: Span) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex() or None,
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "attributes": {
            one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
            for one in span.attributes
            if one.value.WhichOneof("value") != "array_value"
        },
        "links": [{"trace_id": x.trace_id.hex(), "span_id": x.span_id.hex()} for x in span.links],
    }
