"""Exported traces under the rules by which Jaeger shows them.

The spans went over the wire to a receiver. The rules, and the files of Jaeger that they are from,
are in `tests.support.servers.jaeger_rules`: Jaeger itself was not run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact, fact_ns
from telemetry.requests.phases import RequestTimeline
from tests.support.servers.jaeger_rules import (
    CHILD_OF,
    FOLLOWS_FROM,
    JaegerSpan,
    Received,
    Reference,
    host_key,
    skew_ns,
    translated,
    warnings,
)
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.otlp_thread import exporting
from tests.support.worlds.facts import MS, accepted, parsed, request_ended, tokenized
from tests.support.worlds.ledger_world import run_fold
from tests.support.worlds.timelines import finished, now_ms, timeline_of
from tests.telemetry.requests.test_stall_links import (
    culprits_judged_first,
    late_by_mask,
    late_by_preemption,
    late_by_prompt,
    with_own_traces,
)

CALLER = "00f067aa0ba902b7"

worlds = pytest.mark.parametrize("make", [late_by_prompt, late_by_mask, late_by_preemption])


def received(timelines: Sequence[RequestTimeline], protocol: str = "grpc") -> list[Received]:
    with OtlpReceiver(protocol) as receiver, exporting(receiver.endpoint, protocol) as thread:
        for timeline in timelines:
            thread.on_timeline(timeline)
        assert thread.flush(20)
        return [(span, tree.resource) for tree in receiver.trees() for span in tree.spans]


def late(make: Callable[[], list[Fact]]) -> list[Received]:
    """Spans of requests that made each other late, so that stalls have links."""
    facts = sorted(with_own_traces(make()), key=fact_ns)
    timelines, ledger_builder = run_fold(facts, itl_target_ns=50 * MS)
    return received(culprits_judged_first(timelines, ledger_builder))


def ended(reason: EndReason) -> RequestTimeline:
    at = now_ms() - 100
    facts: list[Fact] = [accepted(at=at), parsed(at=at + 1), tokenized(at=at + 2)]
    return timeline_of([*facts, request_ended(at=at + 70, reason=reason)])


def traces(spans: Sequence[Received]) -> list[list[Received]]:
    found: dict[bytes, list[Received]] = defaultdict(list)
    for span, resource in spans:
        found[span.trace_id].append((span, resource))
    return list(found.values())


def shown(spans: Sequence[Received]) -> list[JaegerSpan]:
    return [translated(span, resource) for span, resource in spans]


@worlds
def test_jaeger_warns_about_nothing(make: Callable[[], list[Fact]]) -> None:
    """Ids are unique, parents are there, and no child would be moved: neither as spans of one host,
    nor if each had a clock of its own."""
    for trace in traces(late(make)):
        assert all(host_key(resource) for _, resource in trace)
        assert warnings(trace) == []
        assert warnings(trace, with_hosts=False) == []


@worlds
def test_a_span_is_a_child_first_and_follows_from_what_it_links_to(
    make: Callable[[], list[Fact]],
) -> None:
    """No link takes the place of the parent, and every target is a span that Jaeger has."""
    spans = late(make)
    ids = {(span.trace_id, span.span_id) for span, _ in spans}
    links = 0
    for span, resource in spans:
        references = translated(span, resource).references
        assert len(references) == bool(span.parent_span_id) + len(span.links)
        if span.parent_span_id:
            assert references[0] == Reference(CHILD_OF, span.trace_id, span.parent_span_id)
        for one in references[bool(span.parent_span_id) :]:
            assert one.kind == FOLLOWS_FROM
            assert (one.trace_id, one.span_id) in ids
            links += 1
    assert links


@worlds
def test_service_and_operations_can_be_searched_for(make: Callable[[], list[Fact]]) -> None:
    """The service is the one of the resource; operations are few, and none has an id in it."""
    found = shown(late(make))

    assert {span.service for span in found} == {"svc"}
    operations = {span.operation for span in found}
    assert "text_completion model" in operations
    assert {"prefill", "decode", "stall"} < operations
    assert len(operations) < 20


@worlds
def test_no_tag_comes_twice(make: Callable[[], list[Fact]]) -> None:
    """An attribute with the name of a tag that Jaeger makes would hide one of the two."""
    for span in shown(late(make)):
        names = [name for name, _ in span.tags]
        assert len(set(names)) == len(names)


def test_the_root_is_of_kind_server_and_the_rest_internal() -> None:
    for span in shown(received([finished(now_ms() - 100)])):
        is_root = not span.references
        assert dict(span.tags)["span.kind"] == ("server" if is_root else "internal")
        assert span.duration_ns >= 0


@pytest.mark.parametrize(
    ("reason", "is_error"), [(EndReason.ENGINE_DIED, True), (EndReason.QUEUE_FULL, False)]
)
def test_only_a_failure_of_ours_is_red(reason: EndReason, is_error: bool) -> None:
    """Jaeger paints what has the tag `error`."""
    tags = [dict(span.tags) for span in shown(received([ended(reason)]))]

    assert [one["error"] for one in tags if "error" in one] == [True] * is_error


def test_events_keep_their_names() -> None:
    """An attribute `event` would replace it."""
    logs = [log for span in shown(late(late_by_prompt)) for log in span.logs]

    assert logs
    assert {dict(log)["event"] for log in logs} == {"slow_token"}


def test_a_callers_span_on_another_host_does_not_move_ours() -> None:
    """Its span encloses ours, as the span of a client does; without it Jaeger says so."""
    timeline = finished(now_ms() - 100, parent_span_id=CALLER, trace_sampled=True)
    spans = received([timeline])
    root, resource = next(one for one in spans if one[0].parent_span_id.hex() == CALLER)
    caller = Span(
        trace_id=root.trace_id,
        span_id=root.parent_span_id,
        name="client",
        start_time_unix_nano=root.start_time_unix_nano - 5 * MS,
        end_time_unix_nano=root.end_time_unix_nano + 5 * MS,
    )

    assert warnings(spans) == [f"{root.name}: its parent is not in the trace"]
    assert warnings([*spans, (caller, {**resource, "host.name": "elsewhere"})]) == []


def test_the_rules_see_what_they_look_for() -> None:
    """A child that begins before its parent is moved to the middle of it, an id that comes twice
    and a link to the own parent are noticed."""
    parent = Span(span_id=b"p" * 8, name="p", start_time_unix_nano=100, end_time_unix_nano=200)
    child = Span(span_id=b"c" * 8, parent_span_id=b"p" * 8, name="c")
    child.start_time_unix_nano, child.end_time_unix_nano = 90, 110
    child.links.add(trace_id=b"", span_id=b"p" * 8)
    trace: list[Received] = [(parent, {}), (child, {}), (parent, {})]

    assert skew_ns(child, parent) == 50
    assert len(warnings(trace)) == 4
    assert translated(child, {}).references == (Reference(FOLLOWS_FROM, b"", b"p" * 8),)
