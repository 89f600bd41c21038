"""Each link of a late token's span points to a span that was exported."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from telemetry.facts.reasons import WaitReason
from telemetry.facts.records import Fact, RequestAccepted, fact_ns
from telemetry.facts.step_parts import Skip
from telemetry.ledger.builder import LedgerBuilder
from telemetry.requests.phases import RequestTimeline
from telemetry.traces.sampling import SamplingPolicy, TailSampler, TracingMode
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.otlp_thread import exporting, stop
from tests.support.servers.otlp_trees import attribute
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)
from tests.support.worlds.ledger_world import run_fold, world_facts
from tests.support.worlds.timelines import now_ms

SAMPLED = SamplingPolicy(TracingMode.SAMPLED, 0.0)
FULL = SamplingPolicy(TracingMode.FULL)


def trace_of(request_id: str) -> str:
    """Each request has a trace of its own."""
    return f"{int.from_bytes(request_id.encode(), 'big'):032x}"[-32:]


def with_own_traces(facts: Sequence[Fact]) -> list[Fact]:
    return [
        msgspec.structs.replace(fact, trace_id=trace_of(fact.request_id))
        if isinstance(fact, RequestAccepted)
        else fact
        for fact in facts
    ]


def lifecycle(seq_id: int, begin: int, end: int, constrained: bool = False) -> list[Fact]:
    name = f"r{seq_id}"
    entry = msgspec.structs.replace(queued(seq_id, begin + 4), constrained=constrained)
    return [
        accepted(name, begin),
        parsed(name, begin + 1),
        tokenized(name, begin + 2),
        submitted(name, begin + 3, seq_id),
        entry,
        sequence_ended(seq_id, end - 20),
        request_ended(name, end),
    ]


def steady(first: int, count: int, rows: Sequence[int], at: int, length: int = 10) -> list[Fact]:
    return [
        step(first + i, at + i * length, at + (i + 1) * length, [decode(r, 5 + i) for r in rows])
        for i in range(count)
    ]


def late_by_prompt() -> list[Fact]:
    """Request 3's prompt makes a step of 200 ms in which 1 and 2 decode."""
    facts = [step(0, 10, 20, [prefill(1), prefill(2)]), *steady(1, 40, [1, 2], 20)]
    facts += [step(41, 420, 620, [decode(1), decode(2), prefill(3, tokens=400)])]
    facts += steady(42, 10, [1, 2, 3], 620)
    return [*facts, *lifecycle(1, 0, 760), *lifecycle(2, 0, 770), *lifecycle(3, 410, 780)]


def late_by_batch() -> list[Fact]:
    """Sixty rows decode together; no prompt, no mask, no culprit."""
    rows = list(range(10, 70))
    facts = [step(0, 10, 20, [prefill(1), *(prefill(r) for r in rows)])]
    facts += [*steady(1, 40, [1, 10], 20), *steady(41, 5, [1, *rows], 420, length=80)]
    return [*facts, *(fact for seq_id in (1, *rows) for fact in lifecycle(seq_id, 0, 900))]


def late_by_mask() -> list[Fact]:
    """Request 2's masks take 80 ms of each step."""
    facts = [step(0, 10, 20, [prefill(1), prefill(2)])]
    for number in range(1, 6):
        begin = 20 + (number - 1) * 100
        masked = step(number, begin, begin + 100, [decode(1), decode(2)], mask_ns=80 * MS)
        facts.append(msgspec.structs.replace(masked, sample_ns=(begin + 20) * MS))
    return [*facts, *lifecycle(1, 0, 600), *lifecycle(2, 0, 610, constrained=True)]


def late_by_preemption() -> list[Fact]:
    """Request 1 loses its blocks for 200 ms."""
    skips = (Skip(1, WaitReason.KV, None),)
    facts = [step(0, 10, 20, [prefill(1), prefill(2)]), *steady(1, 10, [1, 2], 20)]
    facts += [step(11, 120, 130, [decode(2)], preempted=(1,), skips=skips)]
    facts += [step(12 + i, 130 + 10 * i, 140 + 10 * i, [decode(2)], skips=skips) for i in range(19)]
    facts += [step(31, 320, 330, [decode(2), prefill(1, tokens=12)]), *steady(32, 5, [1, 2], 330)]
    return [*facts, *lifecycle(1, 0, 500), *lifecycle(2, 0, 510)]


def exported(
    timelines: Sequence[RequestTimeline], ledger_builder: LedgerBuilder, policy: SamplingPolicy
) -> list[Span]:
    """All spans that a receiver has when the exporter has stopped."""
    sampler = TailSampler(policy, ledger_builder.harm.is_culprit)
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, sampler=sampler) as thread:
        for timeline in timelines:
            thread.on_timeline(timeline)
        stop(thread)
        return [span for tree in receiver.trees() for span in tree.spans]


def links_of(spans: Sequence[Span]) -> list[tuple[Span, bytes, bytes]]:
    return [(span, link.trace_id, link.span_id) for span in spans for link in span.links]


def check_links(spans: Sequence[Span]) -> list[Span]:
    """Every link's target is among the spans; the targets."""
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    links = links_of(spans)
    dangling = [span.name for span, *target in links if tuple(target) not in by_id]
    assert not dangling, f"{len(dangling)} of {len(links)} links point to no exported span"
    return [by_id[trace_id, span_id] for _, trace_id, span_id in links]


@pytest.mark.parametrize("policy", [FULL, SAMPLED], ids=["full", "sampled"])
@pytest.mark.parametrize(
    ("make", "targets"),
    [
        (late_by_prompt, {"prefill.chunk"}),
        (late_by_mask, {"decode"}),
        (late_by_preemption, {"preempted"}),
        (late_by_batch, set()),
    ],
)
def test_a_late_token_links_to_what_made_it_late_where_that_is_exported(
    make: object, targets: set[str], policy: SamplingPolicy
) -> None:
    """In sampled mode culprits are kept, and requests whose caller samples."""
    assert callable(make)
    facts = sorted(with_own_traces(make()), key=fact_ns)
    timelines, ledger_builder = run_fold(facts, itl_target_ns=50 * MS)
    kept = [dataclasses.replace(one, accepted=marked(one.accepted)) for one in timelines]
    spans = exported(culprits_judged_first(kept, ledger_builder), ledger_builder, policy)
    stalls = [span for span in spans if span.name == "stall"]
    assert stalls
    assert {span.name for span in check_links(spans)} == targets
    if not targets:
        assert {attribute(span, "phasescope.culprit.request_id") for span in stalls} == {None}


def marked(fact: RequestAccepted) -> RequestAccepted:
    """Its caller samples, so that a victim is kept in sampled mode."""
    return msgspec.structs.replace(fact, trace_sampled=True)


def culprits_judged_first(
    timelines: Sequence[RequestTimeline], ledger_builder: LedgerBuilder
) -> list[RequestTimeline]:
    """Culprits first, because the exporter does not wait for requests that ended long ago."""
    names = ledger_builder.harm.is_culprit
    return sorted(timelines, key=lambda one: not names(one.accepted.request_id))


@pytest.mark.parametrize("policy", [FULL, SAMPLED], ids=["full", "sampled"])
def test_no_link_of_a_simulated_run_points_to_nothing(policy: SamplingPolicy) -> None:
    """Requests in the order in which they ended, so that some end before their culprits."""
    links = 0
    for world, seed in itertools.product(("chaos", "bursts", "tenants"), range(3)):
        facts = with_own_traces(world_facts(world, seed))
        timelines, ledger_builder = run_fold(facts, itl_target_ns=30 * MS)
        links += len(check_links(exported(timelines, ledger_builder, policy)))
    assert links or policy is SAMPLED


def test_a_victim_waits_for_the_verdict_on_its_culprit_and_then_links_to_it() -> None:
    """It ends first; its culprit, a moment later."""
    timelines, ledger_builder = run_fold(
        sorted(with_own_traces(late_by_prompt()), key=fact_ns), itl_target_ns=50 * MS
    )
    fresh = [of_now(timeline) for timeline in timelines]
    sampler = TailSampler(FULL, ledger_builder.harm.is_culprit)
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, sampler=sampler) as thread:
        for timeline in fresh[:2]:
            thread.on_timeline(timeline)
        assert thread.view().traces_queued == 2
        thread.on_timeline(fresh[2])
        trees = receiver.wait_for(lambda found: len(found) == 3 and found, "all three")
        targets = check_links([span for tree in trees for span in tree.spans])
    assert [span.name for span in targets] == ["prefill.chunk"] * 2


def of_now(timeline: RequestTimeline) -> RequestTimeline:
    """The same request, ended just now by the exporter's clock."""
    ended = msgspec.structs.replace(timeline.ended, at_ns=now_ms() * MS)
    return dataclasses.replace(timeline, ended=ended)


def test_a_victim_whose_culprit_was_not_kept_names_it_without_a_link() -> None:
    """The queue of traces is full, so the culprit's trace was dropped."""
    timelines, ledger_builder = run_fold(
        sorted(with_own_traces(late_by_prompt()), key=fact_ns), itl_target_ns=50 * MS
    )
    sampler = TailSampler(FULL, ledger_builder.harm.is_culprit)
    with OtlpReceiver("http") as receiver, exporting(receiver.endpoint, sampler=sampler) as thread:
        sampler.policy = SamplingPolicy(TracingMode.OFF)
        thread.on_timeline(timelines[2])
        sampler.policy = FULL
        thread.on_timeline(timelines[0])
        stop(thread)
        spans = [span for tree in receiver.trees() for span in tree.spans]
    (stall,) = [span for span in spans if span.name == "stall"]
    assert attribute(stall, "phasescope.culprit.request_id") == "r3"
    assert not links_of(spans)
