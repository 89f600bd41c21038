"""Which traces are kept, and how many requests each of them stands for."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import Skip
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.traces.sampling import (
    REJECTED_PER_S,
    KeptTraces,
    NotSampledReason,
    Sampled,
    SampledReason,
    SamplingPolicy,
    TailSampler,
    TracingMode,
    largest_gap_ns,
    passes_rate,
)
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

NONE_OF_THE_REST = SamplingPolicy(TracingMode.SAMPLED, 0.0)


def timeline_of(*facts: Fact) -> RequestTimeline:
    found: list[RequestTimeline] = []
    PhaseFold([found.append]).on_facts(facts)
    (timeline,) = found
    return timeline


def finished(itl_ms: int = 5, preempted: bool = False, **fields: object) -> RequestTimeline:
    """Three tokens, the last two `itl_ms` apart."""
    middle = [step(1, 20, 25, [decode()]), step(2, 25, 25 + itl_ms, [decode()])]
    if preempted:
        skips = (Skip(1, WaitReason.PREEMPTED, None),)
        middle = [step(1, 20, 25, [], skips, preempted=(1,)), step(2, 25, 30, [prefill(tokens=5)])]
    return timeline_of(
        accepted(**fields), parsed(), tokenized(), submitted(), queued(),
        step(0, 10, 20, [prefill()]), *middle,
        sequence_ended(at=35 + itl_ms), request_ended(at=40 + itl_ms),
    )  # fmt: skip


def ended(reason: EndReason, at: int = 70, **fields: object) -> RequestTimeline:
    return timeline_of(
        accepted(at=at, **fields), parsed(at=at), request_ended(at=at, reason=reason)
    )


def verdict_of(timeline: RequestTimeline, sampler: TailSampler) -> tuple[str, float] | str:
    verdict = sampler.decide(timeline)
    if isinstance(verdict, Sampled):
        return verdict.reason.value, verdict.ratio
    return verdict.value


@pytest.mark.parametrize(
    ("timeline", "expected"),
    [
        (finished(), "rate"),
        (finished(preempted=True), ("preempted", 1.0)),
        (finished(trace_sampled=True, parent_span_id="00f067aa0ba902b7"), ("parent", 1.0)),
        (finished(trace_sampled=False), "parent_not_sampled"),
        (ended(EndReason.ENGINE_DIED), ("failed", 1.0)),
        (ended(EndReason.ENGINE_DIED, trace_sampled=False), ("failed", 1.0)),
        (ended(EndReason.DISCONNECT), ("cancelled", 1.0)),
        (ended(EndReason.DISCONNECT, trace_sampled=False), "parent_not_sampled"),
        (ended(EndReason.QUEUE_FULL), ("rejected", 1.0)),
        (ended(EndReason.QUEUE_FULL, trace_sampled=True), ("parent", 1.0)),
    ],
)
def test_each_reason_to_keep_a_trace(
    timeline: RequestTimeline, expected: tuple[str, float] | str
) -> None:
    """Whatever the rate, remarkable traces are kept, with the reason."""
    assert verdict_of(timeline, TailSampler(NONE_OF_THE_REST)) == expected


def test_the_modes_off_and_full_obey_only_the_callers_sampled_flag() -> None:
    """Full keeps everything, off nothing; a caller that does not sample is respected in both."""
    full, off = (TailSampler(SamplingPolicy(m)) for m in (TracingMode.FULL, TracingMode.OFF))

    assert verdict_of(finished(), full) == ("full", 1.0)
    assert verdict_of(ended(EndReason.QUEUE_FULL), full) == ("full", 1.0)
    assert verdict_of(finished(trace_sampled=False), full) == "parent_not_sampled"
    assert verdict_of(ended(EndReason.INTERNAL), off) == "off"


def test_a_mode_set_at_run_time_holds_from_the_next_request_on() -> None:
    sampler = TailSampler(SamplingPolicy(TracingMode.OFF))
    before = verdict_of(finished(), sampler)
    sampler.policy = SamplingPolicy(TracingMode.SAMPLED, 1.0)

    assert (before, verdict_of(finished(), sampler)) == ("off", ("rate", 1.0))


def test_a_culprit_is_kept_even_if_its_caller_does_not_sample() -> None:
    """Their stall spans link to it: the link must lead somewhere."""
    sampler = TailSampler(NONE_OF_THE_REST, is_culprit=lambda request_id: request_id == "r1")

    assert verdict_of(finished(), sampler) == ("culprit", 1.0)
    assert verdict_of(finished(trace_sampled=False), sampler) == ("culprit", 1.0)
    other = finished()
    fact = msgspec.structs.replace(other.accepted, request_id="r2")
    assert verdict_of(dataclasses.replace(other, accepted=fact), sampler) == "rate"


def test_a_culprit_that_is_found_late_is_judged_again() -> None:
    """Its victim's gap ended after it did."""
    culprits: set[str] = set()
    sampler = TailSampler(NONE_OF_THE_REST, is_culprit=culprits.__contains__)
    timeline = finished()
    left = sampler.decide(timeline)
    assert left is NotSampledReason.RATE
    assert sampler.may_become_culprit(left)
    culprits.add("r1")

    assert sampler.reconsider(timeline, left) == Sampled(SampledReason.CULPRIT)
    assert not TailSampler(NONE_OF_THE_REST).may_become_culprit(left)


def test_a_request_that_missed_its_target_is_slow() -> None:
    sampler = TailSampler(NONE_OF_THE_REST, missed_target=lambda timeline: timeline.e2e_ns > 0)

    assert verdict_of(finished(), sampler) == ("slow", 1.0)


def test_slow_means_beyond_the_99th_percentile_of_the_classs_last_requests() -> None:
    """Known after a hundred requests of the class; a latency that has become common is not slow."""
    sampler = TailSampler(NONE_OF_THE_REST)
    assert verdict_of(finished(itl_ms=500), sampler) == "rate"  # nothing to compare with
    usual = [verdict_of(finished(itl_ms=5 + index % 3), sampler) for index in range(120)]
    slow = verdict_of(finished(itl_ms=90), sampler)
    other = verdict_of(finished(itl_ms=90, slo_class="batch"), sampler)
    later = [verdict_of(finished(itl_ms=90), sampler) for _ in range(200)]

    assert "slow" not in {word for word, *_ in usual}
    assert slow == ("slow", 1.0)
    assert other == "rate"
    assert later[-1] == "rate"


def test_the_window_of_last_requests_is_bounded() -> None:
    """After 1,024 faster requests the old, slow ones no longer count."""
    sampler = TailSampler(NONE_OF_THE_REST)
    for _ in range(1024):
        sampler.decide(finished(itl_ms=200))
    for _ in range(1024):
        sampler.decide(finished(itl_ms=5))

    assert verdict_of(finished(itl_ms=100), sampler) == ("slow", 1.0)


def test_the_largest_gap_is_of_one_sequence() -> None:
    assert largest_gap_ns(finished(itl_ms=30)) == 30 * MS
    assert largest_gap_ns(ended(EndReason.DISCONNECT)) is None


def test_a_storm_of_refusals_keeps_a_few_each_second_that_stand_for_all() -> None:
    """1 / ratio of the kept adds up to the requests that there were."""
    sampler = TailSampler(NONE_OF_THE_REST)
    ratios: list[float] = []
    for index in range(1000):
        verdict = sampler.decide(ended(EndReason.QUEUE_FULL, at=index * 4))  # four seconds
        if isinstance(verdict, Sampled):
            ratios.append(verdict.ratio)
        else:
            assert verdict is NotSampledReason.REJECTED
    last = sampler.decide(ended(EndReason.QUEUE_FULL, at=4001))
    assert isinstance(last, Sampled)

    assert len(ratios) == 4 * REJECTED_PER_S
    stood_for = [Fraction(1) / Fraction(ratio).limit_denominator(2000) for ratio in ratios]
    assert sum(stood_for) + round(1 / last.ratio) == 1001


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.25, 1.0])
def test_the_rate_is_kept_over_many_traces(rate: float) -> None:
    """100,000 ids: within four standard deviations of the share."""
    draw = random.Random(7)
    count = 100_000
    kept = sum(passes_rate(f"{draw.getrandbits(128):032x}", rate) for _ in range(count))

    assert abs(kept - rate * count) <= 4 * (rate * (1 - rate) * count) ** 0.5


@given(st.integers(1, 2**128 - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_keeps_what_a_smaller_one_keeps(number: int, one: float, two: float) -> None:
    """The same id, the same answer, on every server; only the last 56 bits count."""
    trace_id = f"{number:032x}"
    small, large = min(one, two), max(one, two)

    assert passes_rate(trace_id, large) or not passes_rate(trace_id, small)
    assert passes_rate(trace_id, one) == passes_rate("f" * 18 + trace_id[18:], one)


def test_a_trace_kept_by_rate_has_its_sampling_ratio() -> None:
    sampler = TailSampler(SamplingPolicy(TracingMode.SAMPLED, 0.25))
    draw = random.Random(3)
    seen: Counter[tuple[str, float] | str] = Counter()
    timeline = finished()
    for _ in range(400):
        fact = msgspec.structs.replace(timeline.accepted, trace_id=f"{draw.getrandbits(128):032x}")
        seen[verdict_of(dataclasses.replace(timeline, accepted=fact), sampler)] += 1

    assert set(seen) == {("rate", 0.25), "rate"}


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_outside_of_0_to_1_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="share"):
        SamplingPolicy(TracingMode.SAMPLED, rate)


def test_kept_traces_are_remembered_in_bounds() -> None:
    """The oldest are forgotten, and those that got lost on the way."""
    kept = KeptTraces(capacity=2)
    for name in ("a", "b", "c"):
        kept.add(name)
    kept.discard("c")
    kept.discard("never")

    assert [name in kept for name in ("a", "b", "c")] == [False, True, False]
