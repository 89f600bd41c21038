"""Holds, limits, cache hits, cancellations, drafts and step costs, as folds over facts."""

from __future__ import annotations

import msgspec

from telemetry.facts.engine_records import (
    EngineIdled,
    GrammarCompiled,
    Row,
    SequenceAdmitted,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
)
from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import Skip
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import Measure, Measured, RequestTimeline
from telemetry.stats.drain_rate import DrainRate
from telemetry.stats.totals import Totals
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


def one(facts: list[Fact]) -> tuple[RequestTimeline, list[Measured]]:
    timelines: list[RequestTimeline] = []
    measured: list[Measured] = []
    fold = PhaseFold([timelines.append], [measured.append])
    fold.on_facts(facts)
    (timeline,) = timelines
    return timeline, measured


def request(*inner: Fact, reason: EndReason = EndReason.MAX_TOKENS, **ended: object) -> list[Fact]:
    return [
        accepted(), parsed(), tokenized(), submitted(), *inner,
        sequence_ended(reason=reason), request_ended(reason=reason, **ended),
    ]  # fmt: skip


def waits(timeline: RequestTimeline) -> list[tuple[str, int, int]]:
    return [
        (wait.reason.value, wait.start_ns // MS, wait.end_ns // MS)
        for wait in timeline.sequences[0].waits
    ]


def test_a_constrained_request_waits_for_its_grammar_and_then_for_the_queue() -> None:
    timeline, measured = one(
        request(
            SequenceQueued(1, 3 * MS, 0, 4, 16, "", constrained=True),
            step(0, 5, 9, [decode(9)], (Skip(8, WaitReason.KV, None),)),
            GrammarCompiled(1, 12 * MS, 1, 9 * MS, False, False),
            step(1, 20, 30, [prefill()]),
        )
    )

    assert waits(timeline)[0] == ("grammar", 3, 12)
    assert timeline.sequences[0].compile_ns == 9 * MS
    assert [m.value_ns for m in measured if m.measure is Measure.GRAMMAR_COMPILE] == [9 * MS]


def test_a_pause_of_a_running_sequence_is_a_wait_for_its_reader() -> None:
    timeline, _ = one(
        request(
            queued(at=3),
            step(0, 4, 10, [prefill()]),
            SequencePaused(1, 12 * MS, 1),
            step(1, 12, 20, [decode(9)], (Skip(1, WaitReason.CLIENT_PAUSE, None),)),
            SequenceResumed(1, 40 * MS, 2),
            step(2, 40, 50, [decode()]),
        )
    )

    assert waits(timeline) == [("client_pause", 12, 40)]


def test_a_pause_that_never_ends_lasts_to_the_end_of_the_sequence() -> None:
    timeline, _ = one(
        request(
            queued(at=3),
            step(0, 4, 10, [prefill()]),
            SequencePaused(1, 12 * MS, 1),
            reason=EndReason.SLOW_CLIENT,
        )
    )

    assert waits(timeline) == [("client_pause", 12, 60)]


def test_a_tenant_at_its_limit_waits_for_the_policy_and_others_for_the_head() -> None:
    """Sequences 1 and 2 are of tenant a, at its limit; 3, of b, is behind the head 7."""
    skips = (Skip(2, WaitReason.POLICY, None), Skip(7, WaitReason.SEQS, None))
    other = [
        SequenceQueued(2, 3 * MS, 0, 4, 16, "a"),
        SequenceQueued(7, 3 * MS, 0, 4, 16, "b"),
    ]
    for tenant, expected in (("a", "policy"), ("b", "head_of_line")):
        timeline, _ = one(
            request(
                SequenceQueued(1, 3 * MS, 0, 4, 16, tenant),
                *other,
                step(0, 3, 20, [decode(9)], skips),
                step(1, 20, 30, [prefill()]),
            )
        )
        assert waits(timeline) == [(expected, 3, 20)]


def test_a_cancelled_request_has_its_cached_tokens_and_its_cancel_time() -> None:
    timeline, measured = one(
        request(
            queued(at=3),
            SequenceAdmitted(1, 4 * MS, 0, 40, 32, 0, 16),
            SequenceAdmitted(1, 9 * MS, 0, 40, 40, 0, 0),
            step(0, 4, 10, [prefill(context=32, tokens=8)]),
            step(1, 10, 55, [decode()]),
            reason=EndReason.DISCONNECT,
            detected_ns=52 * MS,
        )
    )
    way_out = timeline.cancellation

    assert timeline.cached_tokens == 32
    assert timeline.sequences[0].ghost_tokens == 16
    assert way_out is not None
    assert (way_out.detected_ns, way_out.last_step_ns, way_out.freed_ns) == (
        52 * MS, 55 * MS, 60 * MS,
    )  # fmt: skip
    assert [m.value_ns for m in measured if m.measure is Measure.CANCEL_TO_FREE] == [8 * MS]


def test_accepted_draft_tokens_come_together_and_are_counted() -> None:
    guessed = Row(1, False, 4, 4, 0, 3, False)
    facts = request(queued(at=3), step(0, 4, 10, [prefill()]), step(1, 10, 20, [guessed]))
    timeline, measured = one(facts)
    totals = Totals()
    for fact in facts:
        totals.take(fact)

    assert timeline.token_count == 4
    assert [m.value_ns for m in measured if m.measure is Measure.ITL] == [10 * MS, 0, 0]
    assert (totals.drafted_tokens, totals.accepted_tokens) == (3, 2)


def test_a_request_without_an_end_in_the_engine_is_given_out_when_the_fold_closes() -> None:
    timelines: list[RequestTimeline] = []
    fold = PhaseFold([timelines.append])
    facts = request(queued(at=3), step(0, 4, 10, [prefill()]), reason=EndReason.SHUTDOWN)
    fold.on_facts([fact for fact in facts if fact != sequence_ended(reason=EndReason.SHUTDOWN)])
    assert not timelines

    fold.close()

    assert [timeline.ended.reason for timeline in timelines] == [EndReason.SHUTDOWN]
    assert fold.live == 0


def test_a_request_id_that_is_reused_at_once_gives_two_timelines() -> None:
    """The engine's last fact of the first request comes after the second was accepted."""
    timelines: list[RequestTimeline] = []
    fold = PhaseFold([timelines.append])
    first = request(queued(at=3), step(0, 4, 10, [prefill()]), reason=EndReason.DISCONNECT)
    late = [fact for fact in first if fact == sequence_ended(reason=EndReason.DISCONNECT)]
    fold.on_facts([fact for fact in first if fact not in late])
    fold.on_facts([accepted(at=71), *late, submitted(at=72, seq_id=2), queued(2, 73)])
    fold.on_facts([step(1, 5000, 5010, [prefill(2)])])
    fold.on_facts([sequence_ended(2, 5020), request_ended(at=5030)])

    reasons = [timeline.ended.reason for timeline in timelines]
    assert reasons == [EndReason.DISCONNECT, EndReason.MAX_TOKENS]
    assert fold.live == 0


def test_retry_after_is_the_queue_over_the_rate_and_one_second_when_idle() -> None:
    rate = DrainRate()
    steps = [step(i, 100 * i, 100 * i + 100, [prefill(tokens=10)]) for i in range(20)]
    rate.on_facts([msgspec.structs.replace(s, waiting_tokens=2000) for s in steps])

    assert rate.retry_after_s == 20
    rate.on_facts([msgspec.structs.replace(steps[-1], waiting_tokens=10**9)])
    assert rate.retry_after_s == 60
    rate.on_facts([EngineIdled(3000 * MS, 0, 0, 0, 0, 10)])
    assert rate.retry_after_s == 1
