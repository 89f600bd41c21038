"""A real OTLP receiver, gRPC and HTTP, that is stricter than any collector.

It collects spans, builds the trees, and checks ids, times, parents and kinds. It can also
misbehave on demand, in each of the ways of `Fault`.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.servers.otlp_trees import Tree, below

SERVER = Span.SpanKind.SPAN_KIND_SERVER


class Fault(StrEnum):
    """What the receiver does instead of accepting exports."""

    REFUSE = "refuse"  # a no that is final: 400, PERMISSION_DENIED
    UNAVAILABLE = "unavailable"  # 503 with Retry-After, UNAVAILABLE with RetryInfo
    PARTIAL = "partial"  # takes everything but the spans of chunks
    SLOW = "slow"  # takes everything, after `delay_s`
    BLACK_HOLE = "black_hole"  # takes the request and never answers


@dataclass
class Reply:
    """The answer to an export; `taken` false: an error; `silent`: no answer."""

    taken: bool
    silent: bool = False
    retry_after_s: float | None = None
    rejected: int = 0

    def message(self) -> Any:
        answer = trace_service_pb2.ExportTraceServiceResponse()
        if self.rejected:
            answer.partial_success.rejected_spans = self.rejected
            answer.partial_success.error_message = "told to reject chunks"
        return answer


class OtlpReceiver:
    """`with OtlpReceiver(protocol="grpc") as receiver: receiver.endpoint`."""

    def __init__(self, protocol: str = "grpc", keep: bool = True) -> None:
        self._protocol = protocol
        self._keep = keep
        self._lock = threading.Lock()
        self._spans: list[tuple[Span, dict[str, Any]]] = []
        self._port = 0
        self._released = threading.Event()
        self._fault: Fault | None = None
        self.delay_s = 0.2
        self.retry_after_s = 1.0
        self.request_s: list[float] = []  # when each request came
        self.spans_taken = 0
        self.hanging = threading.Event()  # a request is in the black hole
        self.is_down = False
        self.metric_exports: list[Any] = []
        self.rejected_points = 0  # what partial_success says

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        """Takes effect with the next request; requests that hang are released."""
        self._fault = fault
        self._released.set()
        self._released = threading.Event()
        self.hanging.clear()

    @property
    def requests(self) -> int:
        return len(self.request_s)

    @property
    def wire(self) -> str:
        """The protocol as our flags call it."""
        return "grpc" if self._protocol == "grpc" else "http/protobuf"

    def __enter__(self) -> OtlpReceiver:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.fault = None
        self.down()

    def up(self) -> None:
        """Listen; a second time, at the same port as before."""
        self.is_down = False
        if self._protocol == "grpc":
            self._grpc = grpc.server(ThreadPoolExecutor(8))
            trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Servicer(self), self._grpc)
            metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(
                _MetricsServicer(self), self._grpc
            )
            self._port = self._grpc.add_insecure_port(f"127.0.0.1:{self._port}")
            self._grpc.start()
        else:
            self._http = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
            self._http.daemon_threads = True
            threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
            self._port = self._http.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def down(self) -> None:
        """Stop listening: connections are refused."""
        self.is_down = True
        if self._protocol == "grpc":
            self._grpc.stop(0).wait()
        else:
            self._http.shutdown()
            self._http.server_close()

    def take(self, request: Any) -> Reply:
        """Keep the spans, or act as the fault says."""
        released, fault = self._released, self._fault
        with self._lock:
            self.request_s.append(time.monotonic())
        match fault:
            case Fault.REFUSE:
                return Reply(False)
            case Fault.UNAVAILABLE:
                return Reply(False, retry_after_s=self.retry_after_s)
            case Fault.BLACK_HOLE:
                self.hanging.set()
                released.wait(30)
                return Reply(False, silent=True)
            case Fault.SLOW:
                time.sleep(self.delay_s)
        rejected = 0
        with self._lock:
            for group in request.resource_spans:
                resource = {
                    pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
                    for pair in group.resource.attributes
                }
                for span in itertools.chain(*(scope.spans for scope in group.scope_spans)):
                    if fault is Fault.PARTIAL and span.name == "prefill.chunk":
                        rejected += 1
                        continue
                    self.spans_taken += 1
                    if self._keep:
                        self._spans.append((span, resource))
        return Reply(True, rejected=rejected)

    def take_metrics(self, request: Any) -> Any:
        """The answer to an export of metrics; None when told to refuse."""
        released, fault = self._released, self._fault
        if fault is Fault.BLACK_HOLE:
            self.hanging.set()
            released.wait(30)
        if fault is Fault.REFUSE:
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
                under = below(root, [span for span, _ in members])
                found.append(Tree(root, [root, *under], resource))
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
        """Every tree is sound and every root is a server span, or stands beside one: the wait for
        the result of a call.

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
            if tree.root.name == "tool":
                assert tree.root.links, "a tool span without the request that called"
                continue
            assert tree.root.kind == SERVER, f"orphan span {tree.root.name}"
            tree.check()


class _Servicer(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        reply = self._receiver.take(request)
        if reply.retry_after_s is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", _try_later(reply)),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "told to be unavailable")
        if reply.silent:
            context.abort(grpc.StatusCode.CANCELLED, "nobody waits any more")
        if not reply.taken:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "told to refuse")
        return reply.message()


def _try_later(reply: Reply) -> bytes:
    """A status with RetryInfo, as gRPC servers send it."""
    delay = Duration()
    delay.FromNanoseconds(int((reply.retry_after_s or 0) * 1e9))
    detail = AnyMessage()
    detail.Pack(RetryInfo(retry_delay=delay))
    code = grpc.StatusCode.UNAVAILABLE.value[0]
    return Status(code=code, message="later", details=[detail]).SerializeToString()


@contextlib.contextmanager
def silent_port() -> Iterator[str]:
    """An endpoint that accepts connections and sends nothing, not even the protocol's first
    bytes."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


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
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            if receiver.is_down:
                self.close_connection = True  # kept alive from before
                return
            assert self.headers["content-type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/metrics":
                export = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
                taken = receiver.take_metrics(export)
                answer = b"" if taken is None else taken.SerializeToString()
                self.send_response(400 if taken is None else 200)
            else:
                found = self._take_spans(body)
                if found is None:
                    self.close_connection = True
                    return
                answer = found
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            with contextlib.suppress(OSError):  # it may have given up meanwhile
                self.end_headers()
                self.wfile.write(answer)

        def _take_spans(self, body: bytes) -> bytes | None:
            """The answer after its status was sent; None: no answer at all."""
            assert self.path == "/v1/traces", self.path
            reply = receiver.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            if reply.silent:
                return None
            if reply.retry_after_s is not None:
                self.send_response(503)
                self.send_header("retry-after", f"{reply.retry_after_s:g}")
            else:
                self.send_response(200 if reply.taken else 400)
            return reply.message().SerializeToString()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
