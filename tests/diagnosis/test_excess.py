"""Change detection: what lasts fires an alarm, and the alarm says when it has eased. And of which
time a baseline is learnt."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.detection.counts import BUCKET_NS, Buckets, Counts
from diagnosis.detection.excess import (
    ChangeDetector,
    DirectExcess,
    detection_spreads,
    stage_stats,
    stopped_excess,
    stopped_stats,
)
from diagnosis.detection.reference import Reference, slo_baseline
from diagnosis.verdicts.classifier import Diagnoser
from lab.twins.registry import build_twin
from telemetry.facts.host_records import HostSampled
from telemetry.facts.reasons import WaitReason
from telemetry.facts.records import EngineDied, Fact, fact_ns

Excess = tuple[float, float, float, float]
CALM: Excess = (0.0, 0.0, 0.0, 0.0)
QUIET = (CALM, DirectExcess())


def baseline(**more: object) -> Reference:
    return msgspec.structs.replace(
        slo_baseline(), seconds=30.0, live=(0.1, 1.0, 2.0, 0.1), spread=(0.05, 0.3, 0.5, 0.05),
        slow_spread=0.1, own_prompt_spread=0.1, running=2.0, **more,
    )  # fmt: skip


def watched(
    ticks: list[tuple[Excess, DirectExcess]], reference: Reference | None = None
) -> ChangeDetector:
    """A detector after ticks with so many delayed requests by stage, and measured directly."""
    detector = ChangeDetector()
    for number, (excess, direct) in enumerate(ticks):
        detector.add(number * BUCKET_NS, excess, direct, (), reference or baseline())
    return detector


@pytest.mark.parametrize("part", DirectExcess._fields)
def test_directly_measured_excess_fires_below_the_noise_of_its_stage(part: str) -> None:
    """Half a delayed request, less than the variation of a queue."""
    delayed = (CALM, DirectExcess()._replace(**{part: 0.5}))

    assert watched([QUIET] * 20).onset_ns is None
    assert watched([QUIET] * 8 + [delayed] * 14).onset_ns == 8 * BUCKET_NS


def test_stopped_sequences_are_counted_beyond_the_baseline() -> None:
    """Clients that do not read, and preempted blocks; a wait for a first slot is no stop."""
    counts = Counts()
    counts.skipped_ns[WaitReason.CLIENT_PAUSE] = 2 * BUCKET_NS
    counts.skipped_ns[WaitReason.KV] = 5 * BUCKET_NS
    counts.waited_ns[WaitReason.PREEMPTED] = BUCKET_NS
    counts.waited_ns[WaitReason.SEQS] = 7 * BUCKET_NS
    mean, spread = stopped_stats([stage_stats(counts), stage_stats(Counts())])

    assert (mean, spread) == (1.5, 1.5)
    reference = msgspec.structs.replace(baseline(), stopped=mean)
    assert stopped_excess(stage_stats(counts), reference) == 1.5
    assert stopped_stats([]) == (0.0, 0.0)


def test_one_client_that_pauses_for_a_second_fires_nothing() -> None:
    one = (CALM, DirectExcess(stopped=1.0))

    assert watched([QUIET] * 8 + [one] * 2).onset_ns is None
    assert watched([QUIET] * 8 + [one] * 4).onset_ns == 8 * BUCKET_NS


def test_an_alarm_eases_while_a_burst_drains() -> None:
    """Two ticks without a delayed request are enough to make no new finding."""
    excess = (0.0, 6.0, 0.0, 0.0)
    burst = [QUIET] * 4 + [(excess, DirectExcess())] * 4
    fires = watched(burst)

    assert fires.onset_ns == 4 * BUCKET_NS
    assert not fires.has_eased
    drained = watched([*burst, *[QUIET] * 3])
    assert drained.onset_ns is not None
    assert drained.has_eased
    assert watched([*burst, *[QUIET] * 9]).onset_ns is None


def test_an_alarm_does_not_ease_in_quiet_ticks_between_rare_requests() -> None:
    """At a low rate all ticks between two requests are quiet."""
    reference = baseline(first_commit_log=0.0, first_commit_log_spread=0.3)
    detector = ChangeDetector()
    for number in range(24):
        late = [("red", 1.5)] if number % 3 == 0 else []
        detector.add(number * BUCKET_NS, CALM, DirectExcess(), late, reference)

    assert detector.onset_ns is not None
    assert not detector.has_eased


def test_a_short_reference_allows_more_variation() -> None:
    """Twice as much after twelve seconds as after twenty."""
    long = detection_spreads(baseline())
    short = detection_spreads(msgspec.structs.replace(baseline(), seconds=12.0))

    assert short == tuple(2 * spread for spread in long)


def test_a_pending_alarm_fires_when_it_is_promoted() -> None:
    """Half way to its threshold a sum is pending since its begin, which becomes the onset."""
    excess = (0.0, 2.0, 0.0, 0.0)
    detector = watched([QUIET] * 4 + [(excess, DirectExcess())])

    assert (detector.onset_ns, detector.pending_ns) == (None, 4 * BUCKET_NS)
    detector.promote()
    assert detector.onset_ns == 4 * BUCKET_NS
    assert watched([QUIET] * 4).pending_ns is None


def test_a_pending_alarm_outlasts_a_quiet_moment() -> None:
    """Between two requests nothing is delayed; the alarm stays pending for a while."""
    begun = [QUIET] * 4 + [((0.0, 2.1, 0.0, 0.0), DirectExcess())]

    assert watched(begun).pending_ns == 4 * BUCKET_NS
    assert watched([*begun, QUIET]).pending_ns == 4 * BUCKET_NS
    assert watched([*begun, *[QUIET] * 6]).pending_ns is None
    assert watched([QUIET] * 4 + [((0.0, 1.7, 0.0, 0.0), DirectExcess())]).pending_ns is None


_HALF_A_SECOND_NS = 500_000_000


def idle(after_ns: int, seconds: int) -> list[Fact]:
    """What is recorded of a server that nobody asks for anything."""
    return [
        HostSampled(after_ns + number * _HALF_A_SECOND_NS, _HALF_A_SECOND_NS)
        for number in range(1, 2 * seconds + 1)
    ]


@pytest.mark.parametrize("dies", [False, True])
def test_of_a_server_without_requests_no_baseline_is_learnt(dies: bool) -> None:
    facts = build_twin("healthy_light", 1).facts
    end_ns = max(fact_ns(fact) for fact in facts)
    diagnoser = Diagnoser()
    diagnoser.on_facts(facts)
    diagnoser.on_facts(idle(end_ns, 4))  # what was before them is learnt in these
    known = diagnoser.reference()
    assert known is not None

    died: list[Fact] = [EngineDied(end_ns + 5 * 10**9, None, "it was stopped", 1)] if dies else []
    diagnoser.on_facts(died)
    diagnoser.on_facts(idle(end_ns + 5 * 10**9, 40))

    assert diagnoser.reference() is known
    assert known.requests_per_s > 0.5


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 60), st.integers(1, 9)),
            st.tuples(st.just("sum"), st.integers(0, 60), st.integers(0, 60)),
            st.tuples(st.just("forget"), st.integers(0, 30), st.just(0)),
        )
    )
)
def test_a_sum_over_ticks_has_every_fact_whenever_it_came(
    calls: list[tuple[str, int, int]],
) -> None:
    """Also one that came late, after its tick was part of a sum, and none that was forgotten."""
    buckets, known = Buckets(), list[tuple[int, int]]()
    for what, tick, number in calls:
        if what == "add":
            counts = buckets.at(tick * BUCKET_NS + 5)
            counts.accepted += number
            counts.prompt_lengths.append(number)
            known.append((tick, number))
        elif what == "forget":
            buckets.forget(tick * BUCKET_NS)
            known = [(at, one) for at, one in known if at >= tick]
        else:
            total = Counts()
            buckets.add_to(total, tick * BUCKET_NS, number * BUCKET_NS)
            inside = [(at, one) for at, one in known if tick <= at < number]
            assert total.accepted == sum(one for _, one in inside)
            in_order = [one for _, one in sorted(inside, key=lambda pair: pair[0])]
            assert total.prompt_lengths == in_order
