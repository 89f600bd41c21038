"""A trace as a receiver got it: one root, and everything under it."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span


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


def below(root: Span, members: list[Span]) -> list[Span]:
    children = [span for span in members if span.parent_span_id == root.span_id]
    return [span for child in children for span in (child, *below(child, members))]
