"""The stages of the diagnosis are the phases of timelines, with equal borders to the nanosecond."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from msgspec.structs import replace

from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import BUCKET_NS, Stage
from diagnosis.root_cause.counterfactual import timelines_of
from lab.twins.registry import TWINS
from telemetry.facts.reasons import Phase
from telemetry.facts.records import Fact, RequestAccepted, RequestEnded, SequenceSubmitted, fact_ns
from telemetry.requests.phases import RequestTimeline
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
from tests.support.worlds.twins.cases import twin

PHASES = {
    Stage.INGEST: (Phase.ACCEPT, Phase.PARSE, Phase.TOKENIZE),
    Stage.FIRST: (Phase.QUEUE, Phase.PREFILL),
    Stage.DECODE: (Phase.DECODE,),
    Stage.DELIVER: (Phase.DETOKENIZE, Phase.DELIVER),
}


def by_phase(timelines: list[RequestTimeline]) -> dict[Stage, int]:
    spent: Counter[Phase] = Counter()
    for timeline in timelines:
        for phase in timeline.phases:
            spent[phase.name] += phase.end_ns - phase.start_ns
    return {stage: sum(spent[name] for name in names) for stage, names in PHASES.items()}


def by_stage(facts: list[Fact]) -> dict[Stage, int]:
    aggregator = Aggregator()
    aggregator.on_facts(facts)
    counts = aggregator.counts(min(map(fact_ns, facts)) - BUCKET_NS, max(map(fact_ns, facts)) + 1)
    return {stage: counts.live_ns[stage] for stage in Stage}


def whole(facts: list[Fact]) -> list[Fact]:
    """Without the requests that do not end."""
    ended = {fact.request_id for fact in facts if isinstance(fact, RequestEnded)}
    return [fact for fact in facts if getattr(fact, "request_id", None) in ended | {None}]


def two_choices() -> list[Fact]:
    """The first choice has its first token at 10 ms, the second one at 30."""
    return [
        accepted(),
        replace(parsed(), choices=2),
        tokenized(),
        submitted(seq_id=1),
        submitted(seq_id=2),
        queued(1),
        queued(2),
        step(0, 5, 10, [prefill(1)]),
        step(1, 10, 20, [decode(1), prefill(2, sampled=False)]),
        step(2, 20, 30, [decode(1), prefill(2, context=4)]),
        step(3, 30, 40, [decode(1), decode(2)]),
        sequence_ended(1, at=41),
        sequence_ended(2, at=41),
        request_ended(at=50, first_sent_ns=12 * MS),
    ]


def test_decode_begins_with_the_first_token_of_the_last_choice() -> None:
    facts = two_choices()
    assert by_phase(timelines_of(facts)) == by_stage(facts)
    assert by_stage(facts)[Stage.DECODE] == 10 * MS


def test_a_time_to_first_commit_is_not_shown_as_ttft() -> None:
    """The engine had the first token after 10 ms, the client after 12."""
    facts = two_choices()
    (timeline,) = timelines_of(facts)
    aggregator = Aggregator()
    aggregator.on_facts(facts)
    ((_, late),) = aggregator.counts(0, 60 * MS).first_commit_logs
    assert math.exp(late) == pytest.approx(10 * MS)
    assert timeline.ttft_ns == 12 * MS


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("healthy_busy", None), ("heavy_sampling", None), ("cancellation_leak", "siblings"),
        ("ingest_backlog", None), ("queue_overload", None), ("slow_client", None),
    ],
)  # fmt: skip
def test_a_request_spends_as_long_in_each_stage_as_in_its_phases(
    name: str, mechanism: str | None
) -> None:
    facts = whole(twin(name, mechanism or TWINS[name][0]).facts)
    assert by_phase(timelines_of(facts)) == by_stage(facts)


def of_an_attached_engine(facts: list[Fact], submitted_ms: int) -> list[Fact]:
    """With the sequences submitted later."""
    found: list[Fact] = []
    for fact in facts:
        if isinstance(fact, RequestAccepted):
            fact = replace(fact, attached=True)
        elif isinstance(fact, SequenceSubmitted):
            fact = replace(fact, at_ns=submitted_ms * MS)
        found.append(fact)
    return found


def test_a_request_of_an_attached_engine_has_its_stages_when_its_core_has_told_of_it() -> None:
    """It has been in the queue since it was tokenized."""
    facts = of_an_attached_engine(two_choices(), 4)
    assert by_phase(timelines_of(facts)) == by_stage(facts)


def test_a_request_of_which_no_core_has_told_is_in_no_stage_after_its_tokens() -> None:
    """It may have streamed all the time, from a core that is not observed."""
    begun: list[Fact] = [accepted(attached=True), parsed(), tokenized()]
    live = by_stage([*begun, queued(9, at=9_000)])
    ended = by_stage([*begun, request_ended(at=9_000)])

    assert live == ended == dict.fromkeys(Stage, 0) | {Stage.INGEST: 2 * MS}
