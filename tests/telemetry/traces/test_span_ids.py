"""Processes that add spans to one trace, as a gateway and a node do, give them ids of their own."""

from __future__ import annotations

import itertools

from opentelemetry.sdk.resources import Resource

from telemetry.facts.clock import WallAnchor
from telemetry.ledger.builder import LedgerBuilder
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.traces.spans import SpanBuilder
from tests.support.worlds.metrics_world import one_request


def test_two_processes_with_the_same_numbers_give_no_span_the_same_id() -> None:
    """Both number sequences and steps from the start, and a node's request has the gateway's id."""
    found: list[RequestTimeline] = []
    for start_ms in (0, 3):
        fold = PhaseFold([found.append], ledger_builder=LedgerBuilder(lambda slo_class: 10**9))
        fold.on_facts(one_request(start_ms=start_ms))
    numbers = itertools.count(1)
    builders = [SpanBuilder(Resource({}), lambda: f"{next(numbers):016x}") for _ in found]
    spans = [
        span
        for builder, timeline in zip(builders, found, strict=True)
        for span in builder.build(timeline, WallAnchor(0, 0))
    ]
    contexts = [span.context for span in spans if span.context is not None]

    assert len({context.trace_id for context in contexts}) == 1
    assert any(span.name == "prefill.chunk" for span in spans)
    assert len({context.span_id for context in contexts}) == len(spans)
