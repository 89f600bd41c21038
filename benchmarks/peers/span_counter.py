"""An OTLP receiver in a process of its own that counts spans and keeps none.

Started by the comparison, so that phasescope is measured with its tracing on and really
exported. Prints its port; then each line on standard input is answered: an empty one by the counts
so far, a list of ids by those of which no trace has come.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from benchmarks.peers.layout import HOST, REPOSITORY, PeerError

_REQUEST_ID = "gen_ai.request.id"


class Counter(trace_service_pb2_grpc.TraceServiceServicer):
    """The gRPC service; `traces` counts root spans, whose requests' ids are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans = self._roots = self._exports = 0
        self._ids: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        spans = [
            span
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        roots = [span for span in spans if not span.parent_span_id]
        pairs = [(pair.key, pair.value.string_value) for span in roots for pair in span.attributes]
        with self._lock:
            self._spans += len(spans)
            self._roots += len(roots)
            self._exports += 1
            self._ids.update(value for key, value in pairs if key == _REQUEST_ID)
        return trace_service_pb2.ExportTraceServiceResponse()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {"spans": self._spans, "traces": self._roots, "exports": self._exports}

    def missing(self, request_ids: Iterable[str]) -> list[str]:
        """The requests of which no trace has come."""
        with self._lock:
            return [one for one in request_ids if one not in self._ids]


class SpanReceiver:
    """`with SpanReceiver() as receiver: receiver.endpoint`, `receiver.counts()`,
    `receiver.missing(ids)`."""

    def __enter__(self) -> SpanReceiver:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.span_counter"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = f"http://{HOST}:{self._line()['port']}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = self._asked("")
        return found

    def missing(self, request_ids: Iterable[str]) -> list[str]:
        """The requests of which no trace has come."""
        found: list[str] = self._asked(json.dumps(sorted(request_ids)))
        return found

    def _asked(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError("the span receiver ended; start the comparison again")
        return json.loads(line)


def main() -> None:
    counter = Counter()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        counter, server
    )
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    print(json.dumps({"port": port}), flush=True)
    for line in sys.stdin:
        asked = line.strip()
        print(
            json.dumps(counter.missing(json.loads(asked)) if asked else counter.counts()),
            flush=True,
        )
    server.stop(0)


if __name__ == "__main__":
    main()
