"""A real OTLP receiver, gRPC and HTTP, that is stricter than any collector.

It collects spans, builds the trees, and checks ids, times, parents and kinds. It can also
misbehave on demand: refuse, hang, or answer 503.
"""

from __future__ import annotations

import gzip
import itertools
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SERVER = Span.SpanKind.SPAN_KIND_SERVER


def attribute(span: Span, key: str) -> Any:
    """Value of a span's attribute; None when it has none."""
    for pair in span.attributes:
        if pair.key == key:
            kind = pair.value.WhichOneof("value")
            return getattr(pair.value, kind) if kind else None
    return None


@dataclass
class Tree:
    """All spans of one local root."""

    root: Span
    spans: list[Span]
    resource: dict[str, Any] = field(default_factory=dict)

    def attribute(self, key: str) -> Any:
        return attribute(self.root, key)

    @property
    def trace_id(self) -> str:
        return self.root.trace_id.hex()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def children(self, span: Span) -> list[Span]:
        return [child for child in self.spans if child.parent_span_id == span.span_id]

    def check(self) -> None:
        """Ids, times and parents; raises AssertionError."""
        by_id = {span.span_id: span for span in self.spans}
        assert len(by_id) == len(self.spans), "span ids are not unique"
        assert self.resource.get("service.name"), "no service.name"
        for span in self.spans:
            assert len(span.trace_id) == 16, span.trace_id
            assert any(span.trace_id), "zero trace id"
            assert len(span.span_id) == 8, span.span_id
            assert any(span.span_id), "zero span id"
            assert span.end_time_unix_nano >= span.start_time_unix_nano > 0, span.name
            assert abs(span.end_time_unix_nano - time.time_ns()) < 3600e9, "not wall time"
            if span is not self.root:
                parent = by_id[span.parent_span_id]
                assert parent.start_time_unix_nano <= span.start_time_unix_nano, span.name
                assert span.end_time_unix_nano <= parent.end_time_unix_nano, span.name
        phases = self.children(self.root)
        assert phases[0].start_time_unix_nano == self.root.start_time_unix_nano
        assert phases[-1].end_time_unix_nano == self.root.end_time_unix_nano
        for earlier, later in itertools.pairwise(phases):
            assert earlier.end_time_unix_nano == later.start_time_unix_nano, "phases do not tile"


class OtlpReceiver:
    """`with OtlpReceiver(protocol="grpc") as receiver: receiver.endpoint`."""

    def __init__(self, protocol: str = "grpc") -> None:
        self._protocol = protocol
        self._lock = threading.Lock()
        self._spans: list[tuple[Span, dict[str, Any]]] = []
        self.requests = 0
        self.metric_exports: list[Any] = []
        self.rejected_points = 0  # what partial_success says
        self.refusing = threading.Event()
        self.release = threading.Event()  # set: answer; clear: hang
        self.release.set()
        self.hanging = threading.Event()

    @property
    def wire(self) -> str:
        """The protocol as our flags call it."""
        return "grpc" if self._protocol == "grpc" else "http/protobuf"

    def __enter__(self) -> OtlpReceiver:
        if self._protocol == "grpc":
            self._grpc = grpc.server(ThreadPoolExecutor(4))
            trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Servicer(self), self._grpc)
            metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(
                _MetricsServicer(self), self._grpc
            )
            port = self._grpc.add_insecure_port("127.0.0.1:0")
            self._grpc.start()
        else:
            self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
            threading.Thread(target=self._http.serve_forever, daemon=True).start()
            port = self._http.server_address[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        if self._protocol == "grpc":
            self._grpc.stop(0).wait()
        else:
            self._http.shutdown()
            self._http.server_close()

    def take(self, request: Any) -> bool:
        """Keep what came; False when the receiver is told to refuse."""
        self.requests += 1
        if not self.release.is_set():
            self.hanging.set()
            self.release.wait(30)
        if self.refusing.is_set():
            return False
        with self._lock:
            for group in request.resource_spans:
                resource = {
                    pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
                    for pair in group.resource.attributes
                }
                for scope in group.scope_spans:
                    self._spans += [(span, resource) for span in scope.spans]
        return True

    def take_metrics(self, request: Any) -> Any:
        """The answer to an export of metrics; None when told to refuse."""
        if not self.release.is_set():
            self.hanging.set()
            self.release.wait(30)
        if self.refusing.is_set():
            return None
        with self._lock:
            self.metric_exports.append(request)
        answer = metrics_service_pb2.ExportMetricsServiceResponse()
        if self.rejected_points:
            answer.partial_success.rejected_data_points = self.rejected_points
            answer.partial_success.error_message = "told to reject some"
        return answer

    def latest_metrics(self) -> dict[str, Any]:
        """The metrics of the last export, by name."""
        with self._lock:
            exports = self.metric_exports[-1:]
        return {
            metric.name: metric
            for export in exports
            for group in export.resource_metrics
            for scope in group.scope_metrics
            for metric in scope.metrics
        }

    def trees(self) -> list[Tree]:
        """One tree a local root: a span whose parent is not among those received."""
        with self._lock:
            received = list(self._spans)
        by_trace: dict[bytes, list[tuple[Span, dict[str, Any]]]] = defaultdict(list)
        for span, resource in received:
            by_trace[span.trace_id].append((span, resource))
        found: list[Tree] = []
        for members in by_trace.values():
            ids = {span.span_id for span, _ in members}
            roots = [(s, r) for s, r in members if s.parent_span_id not in ids]
            for root, resource in roots:
                below = _below(root, [span for span, _ in members])
                found.append(Tree(root, [root, *below], resource))
        return found

    def wait_for(self, condition: Any, what: str, timeout_s: float = 20.0) -> Any:
        """Poll the trees until `condition(trees)` is true."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            value = condition(self.trees())
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"{what}: not received within {timeout_s} s")

    def tree_of(self, request_id: str) -> Tree:
        """The one tree of a request."""

        def found(trees: list[Tree]) -> list[Tree]:
            return [t for t in trees if t.attribute("gen_ai.request.id") == request_id]

        mine: list[Tree] = self.wait_for(found, f"the tree of {request_id}")
        assert len(mine) == 1, f"{len(mine)} trees for {request_id}"
        return mine[0]

    def check_all(self, timeout_s: float = 10.0) -> None:
        """Every tree is sound and every root is a server span.

        A tree may come in several chunks, so what is not sound yet gets a little time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._check_now()
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _check_now(self) -> None:
        for tree in self.trees():
            assert tree.root.kind == SERVER, f"orphan span {tree.root.name}"
            tree.check()


def _below(root: Span, members: list[Span]) -> list[Span]:
    children = [span for span in members if span.parent_span_id == root.span_id]
    return [span for child in children for span in (child, *_below(child, members))]


class _Servicer(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self._receiver.take(request):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "told to refuse")
        return trace_service_pb2.ExportTraceServiceResponse()


class _MetricsServicer(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = self._receiver.take_metrics(request)
        if answer is None:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "told to refuse")
        return answer


def _handler(receiver: OtlpReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["content-type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/metrics":
                export = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
                taken = receiver.take_metrics(export)
                answer = b"" if taken is None else taken.SerializeToString()
            else:
                assert self.path == "/v1/traces", self.path
                request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
                taken = receiver.take(request) or None
                answer = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
            self.send_response(400 if taken is None else 200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
