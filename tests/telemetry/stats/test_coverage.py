"""How much of requests' time is observed, as it is published: snapshot, metrics, explain, spans."""

from __future__ import annotations

from io import StringIO

import msgspec
from opentelemetry.sdk.resources import Resource
from rich.console import Console

from dashboards.explain import Explained, render
from lab.simulation.attached import attached
from telemetry.facts.clock import WallAnchor
from telemetry.facts.fleet.sequence_records import (
    ReceivedRow,
    RemoteAccount,
    RemoteAccounted,
    RemotePart,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.metrics.prometheus import scalar_families, text
from telemetry.requests.account import NotObserved
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.timelines import describe
from telemetry.stats.coverage import Coverage, CoverageFold
from telemetry.stats.histograms import Histograms
from telemetry.stats.window_fold import WindowFold
from telemetry.traces.spans import SpanBuilder
from tests.support.worlds.facts import accepted, parsed, request_ended, submitted, tokenized
from tests.support.worlds.ledger_world import run_fold, world_facts
from tests.telemetry.requests.test_attached_ledger import MS, one_request, unjoined


def coverage_of(timelines: list[RequestTimeline]) -> Coverage:
    fold = CoverageFold()
    for timeline in timelines:
        fold.on_timeline(timeline)
    return fold.report()


def test_the_share_is_of_all_time_and_of_single_requests() -> None:
    """6 of 40 ms; with a request that lost nothing, the median is that one."""
    whole = run_fold(world_facts("poisson", 1))[0]
    found = coverage_of([one_request()])

    assert found.share is not None
    assert found.share.of_all == found.share.p50 == found.share.p99 == 0.15
    assert found.shares[NotObserved.TO_ENGINE.value].of_all == 3 / 40
    assert found.not_observed_ns[NotObserved.FRONT_END.value] == 0
    mixed = coverage_of([one_request(), *whole])
    assert mixed.share is not None
    assert mixed.share.p50 == 0.0
    assert coverage_of([]).share is None
    assert coverage_of(whole).not_observed_ns == dict.fromkeys(map(str, NotObserved), 0)


def test_a_share_is_never_more_than_all_of_a_request() -> None:
    """A node whose clock is fast tells of more time than passed here."""
    node_ns = 50 * MS + 5000
    account = RemoteAccount(0, node_ns, (RemotePart("not_observed", node_ns),))
    facts: list[Fact] = [
        accepted(), parsed(at=0), tokenized(at=0), submitted(at=0), SequenceSent(0, 1, "n", 1),
        TokensReceived(50 * MS, "n", (ReceivedRow(1, 1),)),
        RemoteAccounted(50 * MS, 1, "n", 1, EndReason.MAX_TOKENS, account, 50 * MS),
        request_ended(at=50),
    ]  # fmt: skip
    found = coverage_of(run_fold(facts)[0])

    assert found.share is not None
    assert found.share.of_all == found.share.p50 == found.share.p99 == 1.0
    assert found.not_observed_ns[NotObserved.AT_NODE.value] == node_ns > found.e2e_ns


def test_it_is_in_the_snapshot_and_among_the_metrics() -> None:
    window = WindowFold(Histograms())
    facts = attached(world_facts("poisson", 2))
    window.on_facts(facts)
    timelines = run_fold(facts)[0]
    for timeline in timelines:
        window.on_timeline(timeline)
    snapshot = window.snapshot(10**9)
    shown = text(scalar_families(snapshot, ())).decode()

    assert snapshot.coverage.engine == "vllm"
    assert snapshot.coverage.is_attached
    assert "sampling" in snapshot.coverage.unobserved
    spent_s = snapshot.coverage.not_observed_ns["to_engine"] / 1e9
    assert f'phasescope_not_observed_seconds_total{{reason="to_engine"}} {spent_s!r}' in shown
    assert 'phasescope_not_observed_share{percentile="p99"}' in shown


def explained(timeline: RequestTimeline) -> str:
    console = Console(width=200, record=True, file=StringIO())
    found = msgspec.json.decode(msgspec.json.encode(describe(timeline)), type=Explained)
    console.print(render(found))
    return console.export_text()


def test_explain_names_the_scope_of_its_claim() -> None:
    ours = run_fold(world_facts("poisson", 1))[0][0]
    shown = explained(one_request())

    assert (
        "engine-core time is exact; 15.0 % of this request was not observed "
        "(to_engine 3.000 ms, to_front_end 3.000 ms)" in shown
    )
    assert "not observed" not in explained(ours)


def test_explain_says_that_nothing_observed_the_front_end() -> None:
    facts = attached(world_facts("poisson", 1), core_only=True)
    assert "this is not the time of its client" in explained(run_fold(facts)[0][0])


def test_what_is_not_observed_is_a_span_in_its_phase() -> None:
    builder = SpanBuilder(Resource({}), iter(f"{n:016x}" for n in range(1, 99)).__next__)
    spans = builder.build(one_request(), WallAnchor(0, 0))
    by_id = {span.context.span_id: span.name for span in spans if span.context}
    found = [
        (by_id[span.parent.span_id], span.attributes["phasescope.reason"], span.start_time)
        for span in spans
        if span.name == "not_observed" and span.parent and span.attributes
    ]
    assert found == [("queue", "to_engine", 2 * MS), ("detokenize", "to_front_end", 30 * MS)]


def test_a_request_of_which_no_core_has_told_says_so_in_explain_and_in_its_spans() -> None:
    """Nothing is claimed of the engine core's time."""
    timeline = unjoined(request_ended(at=42, received_ns=40 * MS))
    builder = SpanBuilder(Resource({}), iter(f"{n:016x}" for n in range(1, 99)).__next__)
    spans = builder.build(timeline, WallAnchor(0, 0))
    (unseen,) = (span for span in spans if span.name == "not_observed")

    assert "all other time is exact; 90.5 % of this request was not observed" in explained(timeline)
    assert dict(unseen.attributes or {}) == {"phasescope.reason": "engine"}
    assert (unseen.start_time, unseen.end_time) == (2 * MS, 40 * MS)
    assert coverage_of([timeline]).not_observed_ns["engine"] == 38 * MS
