"""What Jaeger makes of OTLP spans: its published rules, applied to spans as a receiver got them.

Jaeger could not be run here. Two of its sources say what it does with a trace, read at the commits
given; this is a description of their rules in our words, with none of their code:

- open-telemetry/opentelemetry-collector-contrib, pkg/translator/jaeger/traces_to_jaegerproto.go
  (ebdf3b1de2cc): the service from the resource, the operation from the span's name, references from
  parent and links, tags from attributes, kind and status, logs from events.
- jaegertracing/jaeger, cmd/query/app/querysvc/adjuster/ (clockskew.go 24278bb59160, spanlinks.go
  02bff1c9d5a1, spaniduniquifier.go 090267b2ae5f): what the query service warns about or moves in a
  trace before the UI gets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

NO_SERVICE = "OTLPResourceNoServiceName"
CHILD_OF, FOLLOWS_FROM = "CHILD_OF", "FOLLOWS_FROM"
_KINDS = {
    Span.SpanKind.SPAN_KIND_CLIENT: "client",
    Span.SpanKind.SPAN_KIND_SERVER: "server",
    Span.SpanKind.SPAN_KIND_PRODUCER: "producer",
    Span.SpanKind.SPAN_KIND_CONSUMER: "consumer",
    Span.SpanKind.SPAN_KIND_INTERNAL: "internal",
}
# an attribute of a link with which a sender may choose the type of the reference
_REF_TYPE = "opentracing.ref_type"
# the first of these that a resource has tells Jaeger which spans share a clock
_HOST_KEYS = ("host.id", "host.ip", "host.name")

Received = tuple[Span, dict[str, Any]]  # a span, and the attributes of its resource


@dataclass(frozen=True)
class Reference:
    """The first of a span's is its parent, if it has one."""

    kind: str
    trace_id: bytes
    span_id: bytes


@dataclass(frozen=True)
class JaegerSpan:
    """A span as Jaeger's UI gets it. `tags` are pairs: nothing keeps a name from coming twice."""

    service: str
    operation: str
    references: tuple[Reference, ...]
    tags: tuple[tuple[str, object], ...]
    logs: tuple[tuple[tuple[str, object], ...], ...]
    start_ns: int
    duration_ns: int


def translated(span: Span, resource: dict[str, Any]) -> JaegerSpan:
    return JaegerSpan(
        service=resource.get("service.name", "") if resource else NO_SERVICE,
        operation=span.name,
        references=_references(span),
        tags=(*_pairs(span.attributes), *_made_tags(span)),
        logs=tuple(_log(event) for event in span.events),
        start_ns=span.start_time_unix_nano,
        duration_ns=span.end_time_unix_nano - span.start_time_unix_nano,
    )


def warnings(trace: Sequence[Received], with_hosts: bool = True) -> list[str]:
    """What the UI would warn about in one trace. Without hosts, every child is compared with its
    parent, as if each span came from a machine with a clock of its own."""
    found: list[str] = []
    count = Counter(span.span_id for span, _ in trace)
    by_id = {span.span_id: (span, resource) for span, resource in trace}
    for span, resource in trace:
        if count[span.span_id] > 1:
            found.append(f"{span.name}: its id is not its own")
        if any(not any(link.trace_id) for link in span.links):
            found.append(f"{span.name}: a link without a trace is removed")
        if not span.parent_span_id:
            continue
        if span.parent_span_id not in by_id:
            found.append(f"{span.name}: its parent is not in the trace")
            continue
        parent, of_parent = by_id[span.parent_span_id]
        host = host_key(resource)
        same_clock = with_hosts and host and host == host_key(of_parent)
        if not same_clock and (moved_ns := skew_ns(span, parent)):
            found.append(f"{span.name}: moved by {moved_ns} ns into {parent.name}")
    return found


def host_key(resource: dict[str, Any]) -> str:
    return next((str(resource[key]) for key in _HOST_KEYS if key in resource), "")


def skew_ns(child: Span, parent: Span) -> int:
    """How far a child is moved that does not lie within its parent: to its middle, or to its start
    if it is longer than the parent."""
    start_ns, end_ns = child.start_time_unix_nano, child.end_time_unix_nano
    parent_start_ns, parent_end_ns = parent.start_time_unix_nano, parent.end_time_unix_nano
    room_ns = (parent_end_ns - parent_start_ns) - (end_ns - start_ns)
    if room_ns < 0:
        return max(0, parent_start_ns - start_ns)
    if parent_start_ns <= start_ns and end_ns <= parent_end_ns:
        return 0
    return parent_start_ns + room_ns // 2 - start_ns


def _references(span: Span) -> tuple[Reference, ...]:
    """The parent first. A link to the parent makes no second reference: it takes its place, and
    with it the type that makes the span a child."""
    found: list[Reference] = []
    if span.parent_span_id:
        found.append(Reference(CHILD_OF, span.trace_id, span.parent_span_id))
    for link in span.links:
        asked = dict(_pairs(link.attributes)).get(_REF_TYPE)
        kind = CHILD_OF if asked == "child_of" else FOLLOWS_FROM
        mine = Reference(kind, link.trace_id, link.span_id)
        is_parent = span.parent_span_id and (link.trace_id, link.span_id) == (
            span.trace_id,
            span.parent_span_id,
        )
        if is_parent:
            found[0] = mine
        else:
            found.append(mine)
    return tuple(found)


def _made_tags(span: Span) -> list[tuple[str, object]]:
    """Tags that are no attributes."""
    found: list[tuple[str, object]] = []
    if span.kind in _KINDS:
        found.append(("span.kind", _KINDS[span.kind]))
    if span.status.code == Status.StatusCode.STATUS_CODE_ERROR:
        found += [("otel.status_code", "ERROR"), ("error", True)]
    if span.status.code == Status.StatusCode.STATUS_CODE_OK:
        found.append(("otel.status_code", "OK"))
    if span.status.message:
        found.append(("otel.status_description", span.status.message))
    if span.trace_state:
        found.append(("w3c.tracestate", span.trace_state))
    return found


def _log(event: Span.Event) -> tuple[tuple[str, object], ...]:
    """An attribute that is called event hides the event's name."""
    pairs = _pairs(event.attributes)
    if event.name and "event" not in dict(pairs):
        return (("event", event.name), *pairs)
    return tuple(pairs)


def _pairs(attributes: Any) -> list[tuple[str, object]]:
    """Lists become text; the rest keeps its type."""
    return [(one.key, _value(one.value)) for one in attributes]


def _value(value: Any) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return str([_value(one) for one in value.array_value.values])
    return getattr(value, kind) if kind else ""
